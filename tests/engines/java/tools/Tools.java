import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.BufferedReader;
import java.io.ByteArrayInputStream;
import java.io.ByteArrayOutputStream;
import java.io.InputStream;
import java.io.InputStreamReader;
import java.io.OutputStream;
import java.io.PrintStream;
import java.lang.reflect.InvocationTargetException;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.Map;
import org.apache.kafka.common.utils.Exit;

/**
 * Runs Kafka's command line tools one after the other in one virtual machine, whose start takes longer than they do.
 *
 * <p>A line of its input is a tool's main class, what the tool reads, with \n for the end of a line, and its arguments,
 * divided by tabs. The answer is a JSON object: the status with which the tool ended, and what it printed.
 */
public final class Tools {
    /** What Exit throws instead of ending the process. */
    private static final class Ended extends Error {}

    private static final PrintStream NOWHERE = new PrintStream(OutputStream.nullOutputStream());

    private static Integer status;

    public static void main(String[] arguments) throws Exception {
        Exit.setExitProcedure((code, message) -> {
            if (status == null) status = code;
            System.setOut(NOWHERE); // some tools catch what is thrown here, and complain
            System.setErr(NOWHERE);
            throw new Ended();
        });
        PrintStream answers = System.out;
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            String[] words = line.split("\t", -1);
            ByteArrayOutputStream printed = new ByteArrayOutputStream();
            PrintStream stream = new PrintStream(printed, true, StandardCharsets.UTF_8);
            InputStream text = new ByteArrayInputStream(words[1].replace("\\n", "\n").getBytes(StandardCharsets.UTF_8));
            System.setOut(stream);
            System.setErr(stream);
            System.setIn(text);
            status = null;
            run(words[0], Arrays.copyOfRange(words, 2, words.length));
            Map<String, Object> answer =
                Map.of("status", status == null ? 0 : status, "output", printed.toString(StandardCharsets.UTF_8));
            answers.println(new ObjectMapper().writeValueAsString(answer));
            answers.flush();
        }
        Runtime.getRuntime().halt(0);
    }

    private static void run(String tool, String[] arguments) throws ReflectiveOperationException {
        try {
            Class.forName(tool).getMethod("main", String[].class).invoke(null, (Object) arguments);
        } catch (InvocationTargetException error) {
            if (error.getCause() instanceof Ended) return;
            error.getCause().printStackTrace();
            if (status == null) status = 1;
        }
    }
}
