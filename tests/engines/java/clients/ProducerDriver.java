import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.Future;
import org.apache.kafka.clients.consumer.ConsumerGroupMetadata;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.InvalidProducerEpochException;
import org.apache.kafka.common.errors.ProducerFencedException;
import org.apache.kafka.common.serialization.StringSerializer;

/**
 * A producer that does what it is told, a line at a time, and answers each line with a JSON object.
 *
 * <p>Arguments are its settings, NAME=VALUE. Words of a line are divided by tabs. An error is an answer with the name of
 * the exception's class; whether to go on is for the caller to say.
 */
public final class ProducerDriver {
    private final KafkaProducer<String, String> producer;
    private final List<Future<RecordMetadata>> sent = new ArrayList<>();

    private ProducerDriver(Properties settings) {
        producer = new KafkaProducer<>(settings, new StringSerializer(), new StringSerializer());
    }

    public static void main(String[] arguments) throws Exception {
        Properties settings = new Properties();
        for (String argument : arguments) {
            int equals = argument.indexOf('=');
            settings.put(argument.substring(0, equals), argument.substring(equals + 1));
        }
        ProducerDriver driver = new ProducerDriver(settings);
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            Map<String, Object> answer = new LinkedHashMap<>();
            try {
                driver.run(line.split("\t", -1), answer);
            } catch (Exception error) {
                failed(answer, error);
            }
            Json.print(answer);
        }
        Runtime.getRuntime().halt(0); // without waiting for what is under way: the caller is done
    }

    private static void failed(Map<String, Object> answer, Throwable error) {
        Throwable cause = error instanceof ExecutionException && error.getCause() != null ? error.getCause() : error;
        answer.put("error", cause.getClass().getSimpleName());
        answer.put("message", cause.getMessage());
        answer.put("fenced", isFenced(cause));
    }

    private static boolean isFenced(Throwable error) {
        for (Throwable each = error; each != null; each = each.getCause()) {
            if (each instanceof ProducerFencedException || each instanceof InvalidProducerEpochException) return true;
        }
        return false;
    }

    @SuppressWarnings("removal") // 5.0 is to take this constructor away; a group that is assigned by hand has no other
    private void run(String[] words, Map<String, Object> answer) throws Exception {
        switch (words[0]) {
            case "init" -> producer.initTransactions();
            case "begin" -> {
                sent.clear(); // of the transaction before, which was asked about or given up
                producer.beginTransaction();
            }
            case "send" -> sent.add(
                producer.send(new ProducerRecord<>(words[1], Integer.parseInt(words[2]), words[3], words[4])));
            case "flush" -> flush(answer);
            case "offsets" -> producer.sendOffsetsToTransaction(
                Map.of(
                    new TopicPartition(words[2], Integer.parseInt(words[3])),
                    new OffsetAndMetadata(Long.parseLong(words[4]))),
                new ConsumerGroupMetadata(words[1]));
            case "commit" -> producer.commitTransaction();
            case "abort" -> producer.abortTransaction();
            default -> throw new IllegalArgumentException(words[0]);
        }
    }

    /** Waits for the answers to all that was sent since the last flush. The first error among them is the answer's. */
    private void flush(Map<String, Object> answer) throws Exception {
        producer.flush();
        List<Long> offsets = new ArrayList<>();
        List<Future<RecordMetadata>> futures = new ArrayList<>(sent);
        sent.clear();
        for (Future<RecordMetadata> future : futures) {
            RecordMetadata metadata = future.get();
            offsets.add(metadata.hasOffset() ? metadata.offset() : null);
        }
        answer.put("offsets", offsets);
    }
}
