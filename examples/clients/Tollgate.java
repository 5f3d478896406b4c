// One check over java.net.http. Standard library only, Java 11 or later.
//
//     var limits = new Tollgate("http://127.0.0.1:8080", "api", System.getenv("TOLLGATE_TOKEN"), Tollgate.DEADLINE);
//     var decision = limits.check("{\"client_ip\":\"192.0.2.1\"}");
//     if (!decision.allowed) { response.setStatus(decision.status); decision.headers.forEach(response::setHeader); }
//
// The deadline covers the whole check. If no decision arrives in time, requests pass (FAIL_OPEN) or get status 503.
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.time.Duration;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.CompletionException;
import java.util.concurrent.TimeUnit;

public final class Tollgate {
    static final Duration DEADLINE = Duration.ofMillis(250);
    static final boolean FAIL_OPEN = true;
    static final List<String> PASSED_ON = List.of("retry-after", "ratelimit", "ratelimit-policy");
    static final Decision FAILED = new Decision(FAIL_OPEN ? 200 : 503, Map.of());

    /** A decision: whether the request may pass, the HTTP status (200 or the status of the refusal), and headers for the client. */
    public static final class Decision {
        public final boolean allowed;
        public final int status;
        public final Map<String, String> headers;

        Decision(int status, Map<String, String> headers) {
            this.allowed = status == 200;
            this.status = status;
            this.headers = headers;
        }
    }

    private final HttpClient client;
    private final Duration deadline;
    private final URI check;
    private final String domain;
    private final String token;

    public Tollgate(String url, String domain, String token, Duration deadline) {
        this.client = HttpClient.newBuilder().connectTimeout(deadline).build();
        this.deadline = deadline;
        this.check = URI.create(url + "/v1/check");
        this.domain = domain;
        this.token = token;
    }

    /** Checks a request with these attributes, a JSON object of strings. */
    public Decision check(String attributes) {
        String body = "{\"domain\":\"" + domain + "\",\"attributes\":" + attributes + "}";
        HttpRequest.Builder request = HttpRequest.newBuilder(check).timeout(deadline)
                .header("content-type", "application/json").POST(HttpRequest.BodyPublishers.ofString(body));
        if (token != null) {
            request.header("authorization", "Bearer " + token);
        }
        try {
            HttpResponse<Void> response = client.sendAsync(request.build(), HttpResponse.BodyHandlers.discarding())
                    .orTimeout(deadline.toMillis(), TimeUnit.MILLISECONDS).join();
            if (!response.headers().firstValue("content-type").orElse("").equals("application/json")) {
                return FAILED; // Not a decision: an invalid request or token, or an overloaded server.
            }
            Map<String, String> headers = new TreeMap<>();
            PASSED_ON.forEach(name -> response.headers().firstValue(name).ifPresent(value -> headers.put(name, value)));
            return new Decision(response.statusCode(), headers);
        } catch (CompletionException error) {
            return FAILED;
        }
    }

    /** Checks once and prints the outcome: `java Tollgate.java URL DOMAIN ATTRIBUTES [MILLISECONDS]`. */
    public static void main(String[] args) {
        Duration deadline = args.length > 3 ? Duration.ofMillis(Long.parseLong(args[3])) : DEADLINE;
        Decision decision = new Tollgate(args[0], args[1], System.getenv("TOLLGATE_TOKEN"), deadline).check(args[2]);
        System.out.println(decision.allowed + " " + decision.headers);
    }
}
