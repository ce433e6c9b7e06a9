import java.time.Duration;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.AuthorizationException;
import org.apache.kafka.common.errors.OutOfOrderSequenceException;
import org.apache.kafka.common.errors.ProducerFencedException;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

/**
 * Consume, transform, produce, as the documentation of the producer has it: ADDRESS INPUT OUTPUT GROUP TRANSACTIONAL-ID
 * PROTOCOL [NAME=VALUE …]. The protocol is that of the group: classic, or consumer (KIP-848), in which the broker says
 * how long a session is. The settings are for both clients.
 *
 * <p>Each record's value goes to the same partition of the output in capitals. What is fatal ends the process, and the
 * caller starts another one; after any other error the transaction is aborted and the records are read again.
 */
public final class Transform {
    public static void main(String[] arguments) {
        Properties common = new Properties();
        common.put("bootstrap.servers", arguments[0]);
        common.put("reconnect.backoff.max.ms", "200");
        for (String setting : List.of(arguments).subList(6, arguments.length)) {
            int equals = setting.indexOf('=');
            common.put(setting.substring(0, equals), setting.substring(equals + 1));
        }
        Properties reading = new Properties();
        reading.putAll(common);
        reading.put("group.id", arguments[3]);
        reading.put("isolation.level", "read_committed");
        reading.put("auto.offset.reset", "earliest");
        reading.put("enable.auto.commit", "false");
        reading.put("max.poll.records", "100");
        if (arguments[5].equals("consumer")) {
            reading.put("group.protocol", "consumer");
        } else {
            reading.put("session.timeout.ms", "3000");
            reading.put("heartbeat.interval.ms", "500");
        }
        Properties writing = new Properties();
        writing.putAll(common);
        writing.put("transactional.id", arguments[4]);
        writing.put("delivery.timeout.ms", "30000");
        writing.put("request.timeout.ms", "10000");
        KafkaProducer<String, String> producer =
            new KafkaProducer<>(writing, new StringSerializer(), new StringSerializer());
        KafkaConsumer<String, String> consumer =
            new KafkaConsumer<>(reading, new StringDeserializer(), new StringDeserializer());
        producer.initTransactions();
        consumer.subscribe(List.of(arguments[1]));
        while (true) {
            ConsumerRecords<String, String> records = consumer.poll(Duration.ofMillis(100));
            if (records.isEmpty()) continue;
            try {
                transform(producer, consumer, records, arguments[2]);
            } catch (ProducerFencedException | OutOfOrderSequenceException | AuthorizationException error) {
                end(error);
            } catch (KafkaException error) {
                try {
                    System.err.println("aborted: " + error);
                    producer.abortTransaction();
                } catch (KafkaException fatal) {
                    end(fatal);
                }
                rewind(consumer);
            }
        }
    }

    private static void transform(
        KafkaProducer<String, String> producer,
        KafkaConsumer<String, String> consumer,
        ConsumerRecords<String, String> records,
        String output
    ) {
        producer.beginTransaction();
        Map<TopicPartition, OffsetAndMetadata> offsets = new HashMap<>();
        for (ConsumerRecord<String, String> record : records) {
            producer.send(
                new ProducerRecord<>(output, record.partition(), record.key(), record.value().toUpperCase()));
            offsets.put(
                new TopicPartition(record.topic(), record.partition()), new OffsetAndMetadata(record.offset() + 1));
        }
        producer.sendOffsetsToTransaction(offsets, consumer.groupMetadata());
        producer.commitTransaction();
    }

    /** Read again from what is committed. */
    private static void rewind(KafkaConsumer<String, String> consumer) {
        Map<TopicPartition, OffsetAndMetadata> committed = consumer.committed(consumer.assignment());
        for (TopicPartition partition : consumer.assignment()) {
            OffsetAndMetadata offset = committed.get(partition);
            if (offset == null) consumer.seekToBeginning(List.of(partition));
            else consumer.seek(partition, offset);
        }
    }

    private static void end(KafkaException error) {
        System.err.println("ended: " + error);
        Runtime.getRuntime().halt(3);
    }
}
