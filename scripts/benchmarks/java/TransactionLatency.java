import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.TimeUnit;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.FeatureMetadata;
import org.apache.kafka.clients.admin.FeatureUpdate;
import org.apache.kafka.clients.admin.FinalizedVersionRange;
import org.apache.kafka.clients.admin.UpdateFeaturesOptions;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/**
 * Transactional producers, one for each level of transaction.version, whose transactions are timed.
 *
 * <p>The argument is the broker's HOST:PORT. Words of a line on standard input are divided by tabs, and each line is
 * answered with one line of JSON: `open LEVEL` sets the broker's transaction.version and makes a producer, which learns
 * the level when it connects, and keeps it; `run LEVEL TOPIC RECORDS PARTITIONS TRANSACTIONS_MIN SECONDS PAUSE_MS`
 * commits transactions with it. An exception ends the program: its trace goes to standard error.
 */
public final class TransactionLatency {
    private static final String FEATURE = "transaction.version";
    private static final byte[] VALUE = new byte[1024];
    private static final int POLL_MS = 5;

    private final Map<String, Object> broker;
    private final Map<Short, KafkaProducer<byte[], byte[]>> producers = new HashMap<>();
    private long committed;

    private TransactionLatency(String address) {
        broker = Map.of("bootstrap.servers", address);
    }

    public static void main(String[] arguments) throws Exception {
        TransactionLatency latency = new TransactionLatency(arguments[0]);
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            String[] words = line.split("\t");
            switch (words[0]) {
                case "open" -> latency.open(Short.parseShort(words[1]));
                case "run" -> latency.run(words);
                default -> throw new IllegalArgumentException(line);
            }
        }
        Runtime.getRuntime().halt(0); // no transaction is open: nothing has to be ended
    }

    private void open(short level) throws Exception {
        try (Admin admin = Admin.create(broker)) {
            short before = finalized(admin);
            if (before != level) {
                FeatureUpdate.UpgradeType way =
                    level > before ? FeatureUpdate.UpgradeType.UPGRADE : FeatureUpdate.UpgradeType.SAFE_DOWNGRADE;
                admin.updateFeatures(Map.of(FEATURE, new FeatureUpdate(level, way)), new UpdateFeaturesOptions())
                    .all().get();
                // Kafka's controller answers, and its broker hears of it a little later.
                while (finalized(admin) != level) Thread.sleep(POLL_MS);
            }
        }
        KafkaProducer<byte[], byte[]> producer = new KafkaProducer<>(
            Map.of(
                "bootstrap.servers", broker.get("bootstrap.servers"),
                "transactional.id", "java-latency-" + level,
                "linger.ms", 0),
            new ByteArraySerializer(), new ByteArraySerializer());
        producer.initTransactions();
        producers.put(level, producer);
        answer("{\"opened\": " + level + "}");
    }

    private static short finalized(Admin admin) throws Exception {
        FeatureMetadata features = admin.describeFeatures().featureMetadata().get();
        FinalizedVersionRange range = features.finalizedFeatures().get(FEATURE);
        return range == null ? 0 : range.maxVersionLevel();
    }

    private void run(String[] words) throws Exception {
        KafkaProducer<byte[], byte[]> producer = producers.get(Short.parseShort(words[1]));
        String topic = words[2];
        int records = Integer.parseInt(words[3]);
        int partitions = Integer.parseInt(words[4]);
        int transactionsMin = Integer.parseInt(words[5]);
        long runNs = (long) (Double.parseDouble(words[6]) * TimeUnit.SECONDS.toNanos(1));
        long pauseMs = Long.parseLong(words[7]);
        List<Double> totals = new ArrayList<>();
        List<Double> commits = new ArrayList<>();
        double requestsBefore = requests(producer);
        long started = System.nanoTime();
        while (totals.size() < transactionsMin || System.nanoTime() - started < runNs) {
            // With fewer records than partitions, each transaction goes on where the last one ended.
            long first = committed * records;
            long begun = System.nanoTime();
            producer.beginTransaction();
            for (long number = first; number < first + records; number++) {
                producer.send(new ProducerRecord<>(topic, (int) (number % partitions), null, VALUE));
            }
            long asked = System.nanoTime();
            producer.commitTransaction();
            long answered = System.nanoTime();
            committed++;
            if (pauseMs > 0) Thread.sleep(pauseMs);
            totals.add((answered - begun) / 1e6);
            commits.add((answered - asked) / 1e6);
        }
        long requests = (long) (requests(producer) - requestsBefore);
        answer("{\"totals\": " + totals + ", \"commits\": " + commits + ", \"requests\": " + requests + "}");
    }

    /** How many requests the producer has sent. */
    private static double requests(KafkaProducer<byte[], byte[]> producer) {
        return producer.metrics().entrySet().stream()
            .filter(each -> each.getKey().name().equals("request-total"))
            .filter(each -> each.getKey().group().equals("producer-metrics"))
            .mapToDouble(each -> (double) each.getValue().metricValue())
            .sum();
    }

    private static void answer(String json) {
        System.out.println(json);
        System.out.flush();
    }
}
