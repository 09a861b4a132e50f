package spillgate

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"
	"unicode/utf8"
)

// An answeringServer gives one answer to every call, and counts the calls. In a batch each item gets it.
type answeringServer struct {
	calls  atomic.Int64
	status int
	body   string
}

func (s *answeringServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.calls.Add(1)
	var items []json.RawMessage
	if isBatch := json.NewDecoder(r.Body).Decode(&items) == nil; isBatch && s.status == http.StatusOK {
		fmt.Fprint(w, resultsOf(len(items), s.body))
		return
	}
	w.WriteHeader(s.status)
	fmt.Fprint(w, s.body)
}

func resultsOf(count int, item string) string {
	return `{"results":[` + strings.Join(slices.Repeat([]string{item}, count), ",") + `]}`
}

func startAnswering(t *testing.T, status int, body string) (*answeringServer, *Client) {
	t.Helper()
	answering := &answeringServer{status: status, body: body}
	server := httptest.NewServer(answering)
	t.Cleanup(server.Close)
	return answering, newClient(t, Options{URL: server.URL, Timeout: patience})
}

const allows = `{"allowed":true,"source":"store"}`

func TestABadOptionIsAnErrorThatNamesIt(t *testing.T) {
	for _, bad := range []struct {
		options Options
		names   string
	}{
		{Options{URL: "localhost:8080"}, "URL"},
		{Options{URL: "ftp://localhost"}, "URL"},
		{Options{URL: "http://"}, "URL"},
		{Options{URL: "http://a b"}, "URL"},
		{Options{Timeout: -1}, "Timeout"},
		{Options{OnFailure: 7}, "OnFailure"},
		{Options{Token: "a", TokenFunc: func() string { return "a" }}, "TokenFunc"},
		{Options{Token: "a b"}, "token"},
		{Options{Token: "a\r\nX: y"}, "token"},
		{Options{Token: "gehé"}, "token"},
	} {
		if client, err := New(bad.options); client != nil || err == nil || !strings.Contains(err.Error(), bad.names) {
			t.Errorf("%+v: %v", bad.options, err)
		}
	}
	client := newClient(t, Options{})
	for _, bad := range []RateLimitOptions{
		{TrustedProxies: []string{"local"}}, {Headers: "draft-8"}, {Path: 7},
	} {
		if limit, err := NewRateLimit(client, bad); limit != nil || err == nil {
			t.Errorf("%+v: %v", bad, err)
		}
	}
	if _, err := NewRateLimit(nil, RateLimitOptions{}); err == nil {
		t.Error("a RateLimit without a client has no error")
	}
}

func TestWhiteSpaceAroundATokenIsCutOff(t *testing.T) {
	server := startServer(t, "", false, testToken)
	for _, options := range []Options{
		{Token: testToken + "\n"},
		{Token: " \t" + testToken + "\r\n"},
		{TokenFunc: func() string { return testToken + "\n" }},
	} {
		options.URL, options.Timeout = server.url, patience
		if d, err := newClient(t, options).Check(context.Background(), Request{}); err != nil || d.Source == SourceClient {
			t.Errorf("%q: got %+v and %v", options.Token, d, err)
		}
	}
}

func TestATokenThatCannotBeSentIsAnErrorOfTheCallAndNothingIsSent(t *testing.T) {
	server, client := startAnswering(t, 200, allows)
	client.options.TokenFunc = func() string { return "a\r\nX-Injected: b" }
	ctx := context.Background()
	for range opensAfter + 1 {
		_, checked := client.Check(ctx, Request{})
		_, waited := client.Check(ctx, Request{Wait: time.Second})
		_, all := client.CheckBatch(ctx, []Request{{}})
		_, reserved := client.Reserve(ctx, Request{}, 0)
		_, settled := client.Settle(ctx, "AQAB", nil)
		for _, err := range []error{checked, waited, all, reserved, settled} {
			if !errors.Is(err, ErrInvalidToken) {
				t.Errorf("got %v", err)
			}
		}
	}
	if server.calls.Load() != 0 || client.dispatcher.isOpen() || len(client.dispatcher.flights) != 0 {
		t.Errorf("%d calls, open: %v", server.calls.Load(), client.dispatcher.isOpen())
	}
	recorder := httptest.NewRecorder()
	client.options.OnFailure = OnFailureDeny
	app := http.HandlerFunc(func(http.ResponseWriter, *http.Request) { t.Error("the handler runs") })
	newRateLimit(t, client, RateLimitOptions{}).Handler(app).ServeHTTP(recorder, httptest.NewRequest("GET", "/", nil))
	if recorder.Code != http.StatusServiceUnavailable {
		t.Errorf("status %d", recorder.Code)
	}
}

func TestAnOverloadedServerDeniesAReservation(t *testing.T) {
	server, client := startAnswering(t, 503, `{"title":"x","status":503,"detail":"no room","reason":"overloaded"}`)
	job, err := client.Reserve(context.Background(), Request{}, 0)
	if err != nil {
		t.Fatal(err)
	}
	d := job.Decision
	if d.Allowed || d.Reason != ReasonOverloaded || !d.Degraded || d.Source != "outage-policy" || d.Err != nil {
		t.Errorf("got %+v", d)
	}
	if calls := server.calls.Load(); calls != 1 {
		t.Errorf("sent %d times", calls)
	}
}

func TestARetryableAnswerIsRepeatedAndNoFailureOfTheServer(t *testing.T) {
	server, client := startAnswering(t, 503, `{"title":"x","status":503,"detail":"a shard is down","retryable":true}`)
	for range opensAfter {
		server.calls.Store(0)
		outcome, err := client.Settle(context.Background(), "AQAB", nil)
		if outcome != OutcomeUnavailable || err != nil || server.calls.Load() != tries {
			t.Errorf("got %q and %v after %d calls", outcome, err, server.calls.Load())
		}
	}
	if client.dispatcher.isOpen() {
		t.Error("the breaker is open")
	}
}

func TestAcquireDoesNotAllowBecauseItsContextEnds(t *testing.T) {
	// The server denies at first; later it hangs until the caller has gone.
	var calls atomic.Int64
	end := make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		if calls.Add(1) > 1 {
			<-end
			return
		}
		fmt.Fprint(w, resultsOf(1, `{"allowed":false,"reason":"limit-exceeded","source":"store","retry_after_ms":1}`))
	}))
	defer server.Close()
	defer close(end)
	client := newClient(t, Options{URL: server.URL, Timeout: patience})
	ctx, cancel := context.WithTimeout(context.Background(), 200*time.Millisecond)
	defer cancel()
	if d, err := client.Acquire(ctx, Request{}); d.Allowed || d.Reason != ReasonLimitExceeded || err != nil {
		t.Errorf("the deadline passed: got %+v and %v", d, err)
	}
	cancel()
	d, err := client.Acquire(ctx, Request{})
	if d.Allowed || d.Reason != ReasonStoreUnavailable || d.Source != SourceClient || d.Err == nil || err != nil {
		t.Errorf("no decision yet: got %+v and %v", d, err)
	}
}

func TestALateCallerIsNoFailureOfTheServer(t *testing.T) {
	server, client := startAnswering(t, 200, allows)
	for _, wait := range []time.Duration{-time.Second, -time.Hour, math.MinInt64} {
		for range opensAfter {
			if d, err := client.Check(context.Background(), Request{Wait: wait}); d.Source != "store" || err != nil {
				t.Errorf("a wait of %v: got %+v and %v", wait, d, err)
			}
		}
	}
	if calls := server.calls.Load(); calls != 3*opensAfter || client.dispatcher.breaker.failures != 0 {
		t.Errorf("%d calls, %d failures", calls, client.dispatcher.breaker.failures)
	}
}

func TestASettlementThatIsRefusedDoesNotEndTheReservation(t *testing.T) {
	var paths []string
	var status int
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		paths = append(paths, r.URL.Path)
		switch r.URL.Path {
		case "/v1/reserve":
			fmt.Fprint(w, `{"allowed":true,"source":"store","receipt":"AQAB"}`)
		case "/v1/settle":
			w.WriteHeader(status)
			fmt.Fprint(w, `{"title":"Bad Request","detail":"refused"}`)
		default:
			fmt.Fprint(w, `{"result":"done"}`)
		}
	}))
	defer server.Close()
	client := newClient(t, Options{URL: server.URL, Timeout: patience})
	for _, result := range []struct {
		status  int
		cancels bool
		returns bool
		calls   []string
	}{
		{400, false, true, []string{"/v1/reserve", "/v1/settle", "/v1/cancel"}},
		{400, false, false, []string{"/v1/reserve", "/v1/settle", "/v1/release"}},
		{409, false, false, []string{"/v1/reserve", "/v1/settle"}},
		{400, true, false, []string{"/v1/reserve", "/v1/cancel", "/v1/settle"}},
	} {
		paths, status = nil, result.status
		err := client.WithReservation(context.Background(), Request{}, 0, func(job *Reservation) error {
			if result.cancels {
				_, _ = job.Cancel(context.Background())
			}
			_, err := job.Settle(context.Background(), Cost{"tokens": -1})
			if !isProblem(err) {
				t.Errorf("settled: %v", err)
			}
			if result.returns {
				return err
			}
			return nil
		})
		if isProblem(err) != result.returns || !slices.Equal(paths, result.calls) {
			t.Errorf("%+v: %v after %v", result, err, paths)
		}
	}
}

func TestAnyStringBecomesAValueThatTheServerAccepts(t *testing.T) {
	for _, value := range []string{
		strings.Repeat("a", valueMax+1), strings.Repeat("\xffa", valueMax/2), strings.Repeat("é", valueMax), strings.Repeat("\xff", 1<<20),
	} {
		if text := bounded(value); len(text) > valueMax || !utf8.ValidString(text) {
			t.Errorf("%d bytes became %d: %.20q", len(value), len(text), text)
		}
	}
	long := "/é" + strings.Repeat("a", 1<<16) + "é/"
	if text := bounded(long); !strings.HasPrefix(text, "/éa") || !strings.HasSuffix(text, "aé/") || text == bounded(long+"/") {
		t.Errorf("got %q", text)
	}
	values := map[string]string{"path": long, "ip": "192.0.2.1"}
	request := Request{Attributes: values, Key: long}
	sent := request.withBoundedValues()
	if len(sent.Attributes["path"]) > valueMax || sent.Attributes["ip"] != "192.0.2.1" || len(sent.Key) > valueMax || values["path"] != long {
		t.Errorf("sent %+v", sent)
	}
}

func TestARetryAfterOfAnySizeIsADurationThatIsNotNegative(t *testing.T) {
	for _, ms := range []int64{math.MinInt64, -1, 0, 1, math.MaxInt64} {
		if wait, helps := (Decision{RetryAfterMs: &ms}).RetryAfter(); wait < 0 || !helps || (ms == math.MaxInt64 && wait < time.Hour) {
			t.Errorf("%d ms became %v", ms, wait)
		}
	}
}

func TestErrorsSayWhyThereIsNoAnswer(t *testing.T) {
	client := newClient(t, Options{URL: "http://127.0.0.1:1", Timeout: patience})
	for i := range opensAfter + 1 {
		d, err := client.Check(context.Background(), Request{})
		isOpen := errors.Is(d.Err, ErrBreakerOpen)
		if err != nil || !errors.Is(d.Err, ErrUnavailable) || isOpen != (i == opensAfter) || errors.Is(d.Err, ErrNotSent) {
			t.Errorf("call %d: %v and %v", i, d.Err, err)
		}
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	_, client = startAnswering(t, 200, allows)
	// A call that is not sent charges nothing, so an answer is never in time.
	for i := range 200 {
		d, _ := client.Check(ctx, Request{Wait: time.Duration(i%2) * time.Second})
		if !errors.Is(d.Err, ErrUnavailable) || !errors.Is(d.Err, context.Canceled) {
			t.Fatalf("call %d: got %v", i, d.Err)
		}
	}
}

func TestACheckThatNoBatchCanCarryFailsAloneAndIsNotSent(t *testing.T) {
	server, client := startAnswering(t, 200, allows)
	request := Request{Attributes: map[string]string{}}
	for i := range 200 {
		request.Attributes[fmt.Sprint(i)] = strings.Repeat("a", valueMax)
	}
	_, err := client.Check(context.Background(), request)
	var problem *ProblemError
	if !errors.As(err, &problem) || problem.Status != http.StatusRequestEntityTooLarge || server.calls.Load() != 0 {
		t.Errorf("got %v after %d calls", err, server.calls.Load())
	}
	_, err = client.CheckBatch(context.Background(), []Request{{}, request})
	if !errors.As(err, &problem) || problem.Field != "[1]" {
		t.Errorf("got %+v", problem)
	}
}

func TestABatchOfTheApplicationIsAsManyCallsAsItNeeds(t *testing.T) {
	server := startServer(t, "[[rule]]\nname = \"api\"\nkey = [\"user\"]\nlimits = [\"2000/day\"]\n", false, "")
	client := newClient(t, Options{URL: server.url, Timeout: patience})
	requests := slices.Repeat([]Request{{Attributes: map[string]string{"user": "ada"}}}, 2*batchMax+1)
	decisions, err := client.CheckBatch(context.Background(), requests)
	if err != nil || len(decisions) != len(requests) {
		t.Fatalf("%d decisions and %v", len(decisions), err)
	}
	for i, d := range decisions {
		if d.Allowed != (i < 2000) {
			t.Fatalf("decision %d: %+v", i, d)
		}
	}
	if decisions, err := client.CheckBatch(context.Background(), nil); len(decisions) != 0 || err != nil {
		t.Errorf("an empty batch: %v and %v", decisions, err)
	}
}

func TestARefusedItemOfABatchIsNamedByItsIndex(t *testing.T) {
	server := startServer(t, "", false, "")
	client := newClient(t, Options{URL: server.url, Timeout: patience})
	_, err := client.CheckBatch(context.Background(), []Request{{}, {Key: "a", Limit: &InlineLimit{Quota: "5/fortnight"}}, {Cost: Requests(-1)}})
	var problem *ProblemError
	if !errors.As(err, &problem) || problem.Status != 400 || problem.Field != "[1].limit.quota" {
		t.Errorf("got %+v", err)
	}
}

func isProblem(err error) bool {
	var problem *ProblemError
	return errors.As(err, &problem)
}

// readBody reads a request, so that the server notices when its caller goes.
func readBody(r *http.Request) []byte {
	text, _ := io.ReadAll(r.Body)
	return bytes.TrimSpace(text)
}
