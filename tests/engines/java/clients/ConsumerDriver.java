import java.time.Duration;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.StringDeserializer;

/** Reads all partitions of a topic from the first record to their ends of now: ADDRESS TOPIC PARTITIONS ISOLATION. */
public final class ConsumerDriver {
    public static void main(String[] arguments) {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", arguments[0]);
        settings.put("isolation.level", arguments[3]);
        settings.put("auto.offset.reset", "none");
        settings.put("enable.auto.commit", "false");
        List<TopicPartition> partitions = new ArrayList<>();
        for (int partition = 0; partition < Integer.parseInt(arguments[2]); partition++) {
            partitions.add(new TopicPartition(arguments[1], partition));
        }
        try (KafkaConsumer<String, String> consumer =
            new KafkaConsumer<>(settings, new StringDeserializer(), new StringDeserializer())) {
            consumer.assign(partitions);
            consumer.seekToBeginning(partitions);
            Map<TopicPartition, Long> ends = consumer.endOffsets(partitions);
            while (partitions.stream().anyMatch(each -> consumer.position(each) < ends.get(each))) {
                for (ConsumerRecord<String, String> record : consumer.poll(Duration.ofMillis(100))) {
                    Map<String, Object> line = new LinkedHashMap<>();
                    line.put("partition", record.partition());
                    line.put("offset", record.offset());
                    line.put("key", record.key());
                    line.put("value", record.value());
                    Json.print(line);
                }
            }
        }
    }
}
