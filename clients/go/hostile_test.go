package spillgate

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"testing"
	"time"
)

// A hostileServer writes what it likes to a socket, once for each request.
type hostileServer func(connection net.Conn, path string, items int)

func (s hostileServer) start(t testing.TB) (url string) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { listener.Close() })
	go func() {
		for {
			connection, err := listener.Accept()
			if err != nil {
				return
			}
			go func() {
				defer connection.Close()
				reader := bufio.NewReader(connection)
				for {
					request, err := http.ReadRequest(reader)
					if err != nil {
						return
					}
					body := string(readBody(request))
					s(connection, request.URL.Path, strings.Count(body, `"key"`))
				}
			}()
		}
	}()
	return "http://" + listener.Addr().String()
}

// answers writes these bytes, and leaves the connection open.
func answers(response string) hostileServer {
	return func(connection net.Conn, _ string, _ int) { _, _ = io.WriteString(connection, response) }
}

// answersAndCloses writes these bytes, and ends the connection.
func answersAndCloses(response string) hostileServer {
	return func(connection net.Conn, _ string, _ int) {
		_, _ = io.WriteString(connection, response)
		connection.Close()
	}
}

// repeats writes a head and then the same bytes, until the client has had enough.
func repeats(head, again string) hostileServer {
	// Bytes, since a conversion for each write would count as memory.
	more := []byte(strings.Repeat(again, 1+4096/len(again)))
	return func(connection net.Conn, _ string, _ int) {
		_, err := io.WriteString(connection, head)
		for err == nil {
			_, err = connection.Write(more)
		}
	}
}

// answersJSON writes a status and a body.
func answersJSON(status int, body string) hostileServer { return answers(responseOf(status, body)) }

// decides answers with this JSON as the decision, in the form that each call expects.
func decides(decision string) hostileServer {
	return func(connection net.Conn, path string, items int) {
		body := decision
		if path == "/v1/check/batch" {
			body = resultsOf(items, decision)
		}
		_, _ = io.WriteString(connection, responseOf(200, body))
	}
}

func responseOf(status int, body string) string {
	return fmt.Sprintf("HTTP/1.1 %d x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", status, len(body), body)
}

const chunked = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"

var notAnswers = map[string]hostileServer{
	"nothing at all":             answers(""),
	"an end":                     answersAndCloses(""),
	"no HTTP":                    answersAndCloses("SSH-2.0-OpenSSH_9.7\r\n"),
	"garbage":                    answersAndCloses("\x00\xff\x80\x00"),
	"HTTP/2":                     answers("HTTP/2 200 OK\r\nContent-Length: 2\r\n\r\n{}"),
	"half a head":                answers("HTTP/1.1 200 OK\r\nContent-Le"),
	"half a body":                answers("HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n{\"allowed\":true"),
	"an end in the body":         answersAndCloses("HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n{\"allowed\":true}"),
	"a body of chunks that ends": answersAndCloses(chunked + "5\r\n{\"all"),
	"a status without a number":  answersAndCloses("HTTP/1.1 x OK\r\n\r\n"),
	"a status of 4 digits":       answersAndCloses("HTTP/1.1 2000 OK\r\nContent-Length: 0\r\n\r\n"),
	"status 000":                 answersJSON(0, allows),
	"status 099":                 answers("HTTP/1.1 099 x\r\nContent-Length: 0\r\n\r\n"),
	"status 999":                 answersJSON(999, allows),
	"a negative chunk":           answers(chunked + "-6\r\n{\"allowed\":true}\r\n0\r\n\r\n"),
	"a chunk of letters":         answers(chunked + "zz\r\n{\"allowed\":true}\r\n0\r\n\r\n"),
	"a huge chunk":               answers(chunked + "ffffffffffffffffff\r\n"),
	"a chunk longer than said":   answers(chunked + "2\r\n{}{}{}{}\r\n0\r\n\r\n"),
	"endless chunks":             repeats(chunked, "8\r\n{\"a\":\"aa\r\n"),
	"endless spaces":             repeats(chunked, "8\r\n        \r\n"),
	"endless chunk extensions":   repeats(chunked+"1;", "a"),
	"endless trailers":           repeats(chunked+"2\r\n{}\r\n0\r\n", "A: b\r\n"),
	"endless header fields":      repeats("HTTP/1.1 200 OK\r\n", "A: b\r\n"),
	"an endless header field":    repeats("HTTP/1.1 200 OK\r\nA: ", "b"),
	"an endless status line":     repeats("HTTP/1.1 200 ", "b"),
	"endless 100":                repeats("", "HTTP/1.1 100 Continue\r\n\r\n"),
	"endless 103":                repeats("", "HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n"),
	"a lone 100":                 answers("HTTP/1.1 100 Continue\r\n\r\n"),
	"101":                        answers("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n"),
	"101 and data":               repeats("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n", "{}"),
	"a long Content-Length":      answers("HTTP/1.1 200 OK\r\nContent-Length: " + strings.Repeat("9", 5000) + "\r\n\r\n{}"),
	"a huge Content-Length":      answers("HTTP/1.1 200 OK\r\nContent-Length: 9223372036854775807\r\n\r\n{}"),
	"a negative Content-Length":  answers("HTTP/1.1 200 OK\r\nContent-Length: -2\r\n\r\n{}"),
	"two Content-Lengths":        answers("HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\n{} "),
	"a field without a colon":    answers("HTTP/1.1 200 OK\r\nnonsense\r\nContent-Length: 2\r\n\r\n{}"),
	"gzip that is none":          answers("HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 2\r\n\r\n{}"),
	"204":                        answers("HTTP/1.1 204 No Content\r\n\r\n"),
	"201 with a decision":        answersJSON(201, allows),
	"206 with a decision":        answersJSON(206, allows),
	"a redirect":                 answers("HTTP/1.1 307 x\r\nLocation: /v1/other\r\nContent-Length: 0\r\n\r\n"),
	"a redirect to a web page":   answers("HTTP/1.1 301 x\r\nLocation: http://127.0.0.1:1/\r\nContent-Length: 0\r\n\r\n"),
	"304":                        answers("HTTP/1.1 304 x\r\n\r\n"),
	"a page that is not found":   answersJSON(404, "<html>not found</html>"),
	"a 404 of another service":   answersJSON(404, `{"error":"not found"}`),
	"a title that is no string":  answersJSON(400, `{"title":5}`),
	"a detail that is no string": answersJSON(400, `{"title":"x","detail":5}`),
	"408":                        answersJSON(408, `{"title":"Request Timeout"}`),
	"500":                        answersJSON(500, `{"title":"x"}`),
	"503 of a load balancer":     answersJSON(503, "busy"),
	"a page":                     answersJSON(200, "<html>welcome</html>"),
	"an empty body":              answersJSON(200, ""),
	"no JSON":                    answersJSON(200, "allowed"),
	"null":                       answersJSON(200, "null"),
	"an array":                   answersJSON(200, "[]"),
	"a number":                   answersJSON(200, "1e400"),
	"an empty object":            answersJSON(200, "{}"),
	"deep arrays":                answersJSON(200, strings.Repeat("[", 90_000)),
	"deep objects":               answersJSON(200, strings.Repeat(`{"limits":`, 9_000)),
	"a deep unknown field":       decides(`{"allowed":true,"x":` + strings.Repeat("[", 20_000) + strings.Repeat("]", 20_000) + `}`),
	"not UTF-8":                  decides("{\"allowed\":true,\"rule\":\"\xff\"}"),
	"UTF-16":                     answersJSON(200, "\xff\xfe{\x00}\x00"),
	"JSON and more":              answersJSON(200, allows+allows),
	"too few results":            answersJSON(200, `{"results":[]}`),
	"too many results":           answersJSON(200, resultsOf(3, allows)),
	"results that are no array":  answersJSON(200, `{"results":{"allowed":true}}`),
	"an item that is a number":   decides("5"),
	"an item that is null":       decides("null"),
	"an error without a title":   decides(`{"error":{"status":400}}`),
	"an error that is a string":  decides(`{"error":"x"}`),
	"an error of status 200":     decides(`{"error":{"title":"x","status":200}}`),
	"no allowed":                 decides(`{"source":"store"}`),
	"allowed is null":            decides(`{"allowed":null}`),
	"allowed is a number":        decides(`{"allowed":1}`),
	"allowed is a string":        decides(`{"allowed":"true"}`),
	"a number for a string":      decides(`{"allowed":true,"rule":5}`),
	"a string for a number":      decides(`{"allowed":true,"remaining":"5"}`),
	"a fraction":                 decides(`{"allowed":true,"remaining":1.5}`),
	"a number beyond 64 bits":    decides(`{"allowed":true,"retry_after_ms":1e30}`),
	"headers are an array":       decides(`{"allowed":true,"headers":["a"]}`),
	"a header field is a number": decides(`{"allowed":true,"headers":{"a":5}}`),
	"limits are a string":        decides(`{"allowed":true,"limits":"a"}`),
	"a limit is null":            decides(`{"allowed":true,"limits":[null]}`),
	"a limit is a number":        decides(`{"allowed":true,"limits":[5]}`),
	"a wrong type in a limit":    decides(`{"allowed":true,"limits":[{"capacity":"5"}]}`),
	"too many limits":            decides(`{"allowed":true,"limits":[` + strings.Repeat("{},", 1000) + `{}]}`),
	"a receipt is an object":     decides(`{"allowed":true,"receipt":{}}`),
	"a reset": func(connection net.Conn, _ string, _ int) {
		_, _ = io.WriteString(connection, "HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n{")
		_ = connection.(*net.TCPConn).SetLinger(0)
		connection.Close()
	},
	"a byte now and then": func(connection net.Conn, _ string, _ int) {
		for _, err := io.WriteString(connection, "HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n"); err == nil; time.Sleep(5 * time.Millisecond) {
			_, err = io.WriteString(connection, " ")
		}
	},
}

// inlineRequest is a request that is counted by hostileServer.
var inlineRequest = Request{Key: "k", Limit: &InlineLimit{Quota: "5/minute"}, Headers: "ietf"}

func TestWhateverIsNoAnswerOfSpillgateLetsOnFailureDecideInTime(t *testing.T) {
	for name, server := range notAnswers {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			url := server.start(t)
			ctx := context.Background()
			calls := map[string]func(*Client) (Decision, error){
				"check":             func(c *Client) (Decision, error) { return c.Check(ctx, inlineRequest) },
				"check with a wait": func(c *Client) (Decision, error) { r := inlineRequest; r.Wait = 1; return c.Check(ctx, r) },
				"check_batch": func(c *Client) (Decision, error) {
					decisions, err := c.CheckBatch(ctx, []Request{inlineRequest, inlineRequest})
					if err != nil || len(decisions) != 2 {
						return Decision{}, fmt.Errorf("%d decisions: %w", len(decisions), err)
					}
					return decisions[1], nil
				},
				"reserve": func(c *Client) (Decision, error) {
					job, err := c.Reserve(ctx, inlineRequest, 0)
					if err != nil {
						return Decision{}, err
					}
					return job.Decision, nil
				},
			}
			for operation, call := range calls {
				start := time.Now()
				decision, err := call(newClient(t, Options{URL: url, Timeout: 100 * time.Millisecond}))
				if err != nil || !decision.Allowed || decision.Source != SourceClient || !errors.Is(decision.Err, ErrUnavailable) {
					t.Errorf("%s: got %+v and %v", operation, decision, err)
				}
				if took := time.Since(start); took > patience {
					t.Errorf("%s took %v", operation, took)
				}
			}
			outcome, err := newClient(t, Options{URL: url, Timeout: 100 * time.Millisecond}).Settle(ctx, "AQAB", nil)
			if outcome != OutcomeUnavailable || err != nil {
				t.Errorf("settle: got %q and %v", outcome, err)
			}
		})
	}
}

func TestAnAnswerIsGoodForWhatIsGoodInIt(t *testing.T) {
	for name, good := range map[string]struct {
		decision string
		holds    func(Decision) bool
	}{
		"limits are null":          {`{"allowed":true,"limits":null}`, func(d Decision) bool { return len(d.Limits) == 0 }},
		"everything is null":       {`{"allowed":true,"rule":null,"remaining":null,"headers":null,"denial":null,"receipt":null,"error":null}`, func(d Decision) bool { return d.Denial == nil }},
		"unknown fields":           {`{"allowed":true,"future":[{}]}`, func(d Decision) bool { return d.Allowed }},
		"a denial of status 99":    {`{"allowed":false,"denial":{"status":99,"body":"x"}}`, func(d Decision) bool { return d.Denial == nil }},
		"a denial of status 101":   {`{"allowed":false,"denial":{"status":101,"body":"x"}}`, func(d Decision) bool { return d.Denial == nil }},
		"a denial of status 600":   {`{"allowed":false,"denial":{"status":600,"body":"x"}}`, func(d Decision) bool { return d.Denial == nil }},
		"a denial of status 1e9":   {`{"allowed":false,"denial":{"status":1e9,"body":"x"}}`, func(d Decision) bool { return d.Denial == nil }},
		"a denial of status x":     {`{"allowed":false,"denial":{"status":"x","body":"x"}}`, func(d Decision) bool { return d.Denial == nil }},
		"a denial without a body":  {`{"allowed":false,"denial":{"status":402}}`, func(d Decision) bool { return d.Denial == nil }},
		"a denial of another type": {`{"allowed":false,"denial":"x"}`, func(d Decision) bool { return d.Denial == nil }},
		"unused is null":           {`{"allowed":true,"unused":null}`, func(d Decision) bool { return d.Unused == nil }},
		"a denial of status 204":   {`{"allowed":false,"denial":{"status":204,"body":"x"}}`, func(d Decision) bool { return d.Denial.Status == 204 }},
		"fields with newlines": {`{"allowed":false,"headers":{"a":"b\r\nc: d","e\r\nf":"g","h i":"j","":"k","l":"m\u0000","Content-Length":"5","Transfer-Encoding":"chunked","Retry-After":"7"}}`,
			func(d Decision) bool { return len(d.Headers) == 1 && d.Headers["Retry-After"] == "7" }},
	} {
		t.Run(name, func(t *testing.T) {
			url := decides(good.decision).start(t)
			client := newClient(t, Options{URL: url, Timeout: patience})
			d, err := client.Check(context.Background(), inlineRequest)
			if err != nil || d.Source == SourceClient || !good.holds(d) {
				t.Errorf("got %+v and %v", d, err)
			}
			recorder := httptest.NewRecorder()
			app := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "ok") })
			limit := newRateLimit(t, client, RateLimitOptions{Name: "a"})
			limit.Route("5/minute", app).ServeHTTP(recorder, httptest.NewRequest("GET", "/", nil))
			isDenied := recorder.Code == http.StatusServiceUnavailable || recorder.Code == http.StatusNoContent
			if isDenied == d.Allowed || recorder.Header().Get("Content-Length") != "" {
				t.Errorf("status %d with %v", recorder.Code, recorder.Header())
			}
		})
	}
}

func TestARefusalIsAnAnswer(t *testing.T) {
	for status, body := range map[int]string{
		400: `{"title":"Bad Request","detail":"no","field":"cost"}`, 401: `{"title":"Unauthorized"}`, 413: `{"title":"x"}`, 499: `{"title":""}`,
	} {
		client := newClient(t, Options{URL: answersJSON(status, body).start(t), Timeout: patience})
		for range opensAfter + 1 {
			_, err := client.Check(context.Background(), inlineRequest)
			var problem *ProblemError
			if !errors.As(err, &problem) || problem.Status != status {
				t.Errorf("%d: got %v", status, err)
			}
		}
	}
}

func TestA503OfSpillgateIsAnAnswerForEachCall(t *testing.T) {
	for _, body := range []string{`{"title":"x","reason":"overloaded"}`, `{"title":"x","retryable":true}`} {
		client := newClient(t, Options{URL: answersJSON(503, body).start(t), Timeout: patience})
		ctx := context.Background()
		for range opensAfter + 1 {
			d, err := client.Check(ctx, inlineRequest)
			if err != nil || (d.Source != SourceClient && d.Reason != ReasonOverloaded) {
				t.Errorf("got %+v and %v", d, err)
			}
			if decisions, err := client.CheckBatch(ctx, []Request{{}}); err != nil || len(decisions) != 1 {
				t.Errorf("got %+v and %v", decisions, err)
			}
			if outcome, err := client.Release(ctx, "AQAB"); outcome != OutcomeUnavailable || err != nil {
				t.Errorf("got %q and %v", outcome, err)
			}
		}
		if client.dispatcher.isOpen() {
			t.Errorf("%s opens the breaker", body)
		}
	}
}

// TestTheMemoryOfAnswersIsBounded is sequential, since it measures the memory of the process.
func TestTheMemoryOfAnswersIsBounded(t *testing.T) {
	for name, server := range map[string]hostileServer{
		"endless spaces": notAnswers["endless spaces"],
		"endless head":   notAnswers["an endless header field"],
		"endless 1xx":    notAnswers["endless 103"],
		"empty limits":   repeats("HTTP/1.1 200 OK\r\nContent-Length: 99999999\r\n\r\n{\"allowed\":true,\"limits\":[{}", ",{}"),
		"unused names":   repeats("HTTP/1.1 200 OK\r\nContent-Length: 99999999\r\n\r\n{\"allowed\":true,\"unused\":[\"\"", `,""`),
		"fields":         repeats("HTTP/1.1 200 OK\r\nContent-Length: 99999999\r\n\r\n{\"allowed\":true,\"headers\":{\"a\":\"\"", `,"a":""`),
	} {
		client := newClient(t, Options{URL: server.start(t), Timeout: patience})
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		if d, err := client.Check(context.Background(), inlineRequest); d.Source != SourceClient || err != nil {
			t.Errorf("%s: got %+v and %v", name, d, err)
		}
		runtime.ReadMemStats(&after)
		if used := after.TotalAlloc - before.TotalAlloc; used > 4<<20 {
			t.Errorf("%s: one check used %d KiB", name, used>>10)
		}
	}
}

// TestTheChecksOfABatchDoNotMultiplyItsUnusedNames is sequential, since it measures the memory of the process.
func TestTheChecksOfABatchDoNotMultiplyItsUnusedNames(t *testing.T) {
	results := strings.TrimSuffix(resultsOf(batchMax, allows), "}")
	url := answersJSON(200, fmt.Sprintf(`%s,"unused":[""%s]}`, results, strings.Repeat(`,""`, 100_000))).start(t)
	client := newClient(t, Options{URL: url, Timeout: patience})
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	decisions, err := client.CheckBatch(context.Background(), make([]Request, batchMax))
	runtime.ReadMemStats(&after)
	if err != nil || len(decisions) != batchMax || len(decisions[0].Unused) != 0 {
		t.Errorf("got %d decisions and %v", len(decisions), err)
	}
	if used := after.TotalAlloc - before.TotalAlloc; used > 32<<20 {
		t.Errorf("a batch used %d KiB", used>>10)
	}
}

func TestABatchReadsNoMoreThanItsShare(t *testing.T) {
	if one, most := answerMax(1), answerMax(batchMax); one > 128<<10 || most > 9<<20 {
		t.Errorf("%d and %d bytes", one, most)
	}
	var answer decidedBatch
	start := time.Now()
	if err := parse(200, []byte(strings.Repeat("[", 16<<20)), &answer); !errors.Is(err, ErrUnavailable) {
		t.Errorf("got %v", err)
	}
	t.Logf("16 MiB of open brackets took %v", time.Since(start))
}
