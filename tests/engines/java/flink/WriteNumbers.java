import java.util.Properties;
import org.apache.flink.api.common.eventtime.WatermarkStrategy;
import org.apache.flink.api.common.functions.MapFunction;
import org.apache.flink.api.common.serialization.SimpleStringSchema;
import org.apache.flink.api.common.typeinfo.Types;
import org.apache.flink.api.connector.source.lib.NumberSequenceSource;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.connector.base.DeliveryGuarantee;
import org.apache.flink.connector.kafka.sink.KafkaRecordSerializationSchema;
import org.apache.flink.connector.kafka.sink.KafkaSink;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;

/**
 * Writes the numbers below COUNT to a topic, exactly once, with a checkpoint each half second, and ends:
 * ADDRESS TOPIC COUNT CHECKPOINTS [CHECKPOINT-TO-GO-ON-FROM].
 */
public final class WriteNumbers {
    private static final int A_SECOND = 2500;

    public static void main(String[] arguments) throws Exception {
        Configuration configuration = new Configuration();
        configuration.setString("execution.checkpointing.interval", "500ms");
        configuration.setString("execution.checkpointing.dir", "file://" + arguments[3]);
        configuration.setString("execution.checkpointing.storage", "filesystem");
        configuration.setString("execution.checkpointing.externalized-checkpoint-retention", "RETAIN_ON_CANCELLATION");
        configuration.setString("execution.checkpointing.num-retained", "3");
        configuration.setString("execution.checkpointing.tolerable-failed-checkpoints", "1000");
        configuration.setString("restart-strategy.type", "fixed-delay");
        configuration.setString("restart-strategy.fixed-delay.attempts", "10");
        configuration.setString("restart-strategy.fixed-delay.delay", "500ms");
        if (arguments.length > 4) configuration.setString("execution.state-recovery.path", arguments[4]);

        Properties producer = new Properties();
        producer.put("transaction.timeout.ms", "600000");
        producer.put("reconnect.backoff.max.ms", "200");
        producer.put("request.timeout.ms", "10000");
        producer.put("delivery.timeout.ms", "60000");
        KafkaSink<String> sink = KafkaSink.<String>builder()
            .setBootstrapServers(arguments[0])
            .setDeliveryGuarantee(DeliveryGuarantee.EXACTLY_ONCE)
            .setTransactionalIdPrefix("numbers")
            .setKafkaProducerConfig(producer)
            .setRecordSerializer(KafkaRecordSerializationSchema.<String>builder()
                .setTopic(arguments[1])
                .setValueSerializationSchema(new SimpleStringSchema())
                .build())
            .build();

        StreamExecutionEnvironment environment = StreamExecutionEnvironment.createLocalEnvironment(1, configuration);
        environment
            .fromSource(
                new NumberSequenceSource(0, Long.parseLong(arguments[2]) - 1),
                WatermarkStrategy.noWatermarks(), "numbers", Types.LONG)
            .uid("numbers")
            .map(new Slowly()).returns(Types.STRING).uid("slowly")
            .sinkTo(sink).uid("sink");
        environment.execute("write numbers");
        System.out.println("{\"finished\": true}");
        System.exit(0);
    }

    /** As text, and not faster than A_SECOND of them a second, so that there are checkpoints in between. */
    private static final class Slowly implements MapFunction<Long, String> {
        private static final int AT_ONCE = 50;

        @Override
        public String map(Long number) throws InterruptedException {
            if (number % AT_ONCE == 0) Thread.sleep(1000L * AT_ONCE / A_SECOND);
            return number.toString();
        }
    }
}
