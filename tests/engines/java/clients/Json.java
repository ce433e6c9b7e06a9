import java.util.Map;

/** One JSON object a line, on standard output: all that these programs say. */
final class Json {
    private Json() {}

    /** Print the object. Values are numbers, booleans, null, or anything else by its text. */
    static synchronized void print(Map<String, ?> object) {
        StringBuilder line = new StringBuilder("{");
        for (Map.Entry<String, ?> entry : object.entrySet()) {
            if (line.length() > 1) line.append(", ");
            line.append(quoted(entry.getKey())).append(": ").append(value(entry.getValue()));
        }
        System.out.println(line.append('}'));
        System.out.flush();
    }

    private static String value(Object value) {
        if (value == null || value instanceof Number || value instanceof Boolean) return String.valueOf(value);
        if (value instanceof Iterable<?>) {
            StringBuilder array = new StringBuilder("[");
            for (Object each : (Iterable<?>) value) {
                if (array.length() > 1) array.append(", ");
                array.append(value(each));
            }
            return array.append(']').toString();
        }
        return quoted(value.toString());
    }

    private static String quoted(String text) {
        StringBuilder out = new StringBuilder("\"");
        for (char c : text.toCharArray()) {
            if (c == '"' || c == '\\') out.append('\\').append(c);
            else if (c < ' ') out.append(String.format("\\u%04x", (int) c));
            else out.append(c);
        }
        return out.append('"').toString();
    }
}
