import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import org.apache.kafka.common.config.ConfigDef;
import org.apache.kafka.connect.connector.Task;
import org.apache.kafka.connect.data.Schema;
import org.apache.kafka.connect.source.ExactlyOnceSupport;
import org.apache.kafka.connect.source.SourceConnector;
import org.apache.kafka.connect.source.SourceRecord;
import org.apache.kafka.connect.source.SourceTask;

/** A source of numbers: the settings topic and count. Each task has those that leave its own remainder. */
public final class NumbersConnector extends SourceConnector {
    private Map<String, String> settings;

    @Override
    public void start(Map<String, String> settings) {
        this.settings = settings;
    }

    @Override
    public Class<? extends Task> taskClass() {
        return NumbersTask.class;
    }

    @Override
    public List<Map<String, String>> taskConfigs(int tasks) {
        List<Map<String, String>> all = new ArrayList<>();
        for (int task = 0; task < tasks; task++) {
            Map<String, String> own = new java.util.HashMap<>(settings);
            own.put("first", Integer.toString(task));
            own.put("step", Integer.toString(tasks));
            all.add(own);
        }
        return all;
    }

    @Override
    public void stop() {}

    @Override
    public ConfigDef config() {
        return new ConfigDef()
            .define("topic", ConfigDef.Type.STRING, ConfigDef.Importance.HIGH, "Where to.")
            .define("count", ConfigDef.Type.LONG, ConfigDef.Importance.HIGH, "How many.");
    }

    @Override
    public String version() {
        return "1";
    }

    @Override
    public ExactlyOnceSupport exactlyOnceSupport(Map<String, String> settings) {
        return ExactlyOnceSupport.SUPPORTED;
    }

    /** Goes on from the offset that was committed with the records. */
    public static final class NumbersTask extends SourceTask {
        private static final int AT_ONCE = 20;
        private static final long PAUSE_MS = 20;

        private Map<String, String> partition;
        private String topic;
        private long next;
        private long step;
        private long count;

        @Override
        public void start(Map<String, String> settings) {
            partition = Map.of("first", settings.get("first"));
            topic = settings.get("topic");
            count = Long.parseLong(settings.get("count"));
            step = Long.parseLong(settings.get("step"));
            Map<String, Object> offset = context.offsetStorageReader().offset(partition);
            next = offset == null ? Long.parseLong(settings.get("first")) : (Long) offset.get("next");
        }

        @Override
        public List<SourceRecord> poll() throws InterruptedException {
            Thread.sleep(PAUSE_MS);
            if (next >= count) return null;
            List<SourceRecord> records = new ArrayList<>();
            for (; next < count && records.size() < AT_ONCE; next += step) {
                records.add(new SourceRecord(
                    partition, Map.of("next", next + step), topic, null, null, null,
                    Schema.STRING_SCHEMA, Long.toString(next)));
            }
            return records;
        }

        @Override
        public void stop() {}

        @Override
        public String version() {
            return "1";
        }
    }
}
