package spillgate

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"math"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
	"unicode/utf8"
)

// An answeringServer gives one answer to every call, and counts the calls.
type answeringServer struct {
	calls  atomic.Int64
	status int
	body   string
}

func (s *answeringServer) ServeHTTP(w http.ResponseWriter, _ *http.Request) {
	s.calls.Add(1)
	w.WriteHeader(s.status)
	fmt.Fprint(w, s.body)
}

func startAnswering(t *testing.T, status int, body string) (*answeringServer, *Client) {
	t.Helper()
	answering := &answeringServer{status: status, body: body}
	server := httptest.NewServer(answering)
	t.Cleanup(server.Close)
	quiet := slog.New(slog.NewTextHandler(io.Discard, nil))
	return answering, &Client{URL: server.URL, Timeout: patience, Logger: quiet}
}

func TestAnOverloadedServerDeniesAReservation(t *testing.T) {
	server, client := startAnswering(t, 503, `{"status":503,"detail":"no room","reason":"overloaded"}`)
	job, err := client.Reserve(context.Background(), Request{}, 0)
	if err != nil {
		t.Fatal(err)
	}
	d := job.Decision
	if d.Allowed || d.Reason != Overloaded || !d.Degraded || d.Source != "outage-policy" || d.Err != nil {
		t.Errorf("got %+v", d)
	}
	if calls := server.calls.Load(); calls != 1 {
		t.Errorf("sent %d times", calls)
	}
}

func TestARetryableAnswerIsRepeatedAndNoFailureOfTheServer(t *testing.T) {
	server, client := startAnswering(t, 503, `{"status":503,"detail":"a shard is down","retryable":true}`)
	outcome, err := client.Settle(context.Background(), "AQAB", nil)
	if outcome != Unavailable || err != nil || server.calls.Load() != tries {
		t.Errorf("got %q and %v after %d calls", outcome, err, server.calls.Load())
	}
	if err := client.health.check(); err != nil {
		t.Errorf("the next check does not ask the server: %v", err)
	}
}

func TestAnswersThatAreNotOfSpillgateAreFailures(t *testing.T) {
	for _, foreign := range []struct {
		status int
		body   string
	}{{503, "busy"}, {200, "{}"}} {
		server, client := startAnswering(t, foreign.status, foreign.body)
		for range tripsAfter + 1 {
			if d, err := client.Check(context.Background(), Request{}); !d.Allowed || d.Source != SourceClient || err != nil {
				t.Errorf("%+v: got %+v and %v", foreign, d, err)
			}
		}
		if calls := server.calls.Load(); calls != tripsAfter {
			t.Errorf("%+v: sent %d times", foreign, calls)
		}
	}
}

func TestAcquireDoesNotAllowBecauseItsContextEnds(t *testing.T) {
	// The server denies at first; later it hangs until the caller has gone.
	var calls atomic.Int64
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		if calls.Add(1) > 1 {
			<-r.Context().Done()
			return
		}
		fmt.Fprint(w, `{"allowed":false,"reason":"limit-exceeded","source":"store","retry_after_ms":1}`)
	}))
	defer server.Close()
	client := &Client{URL: server.URL, Timeout: patience}
	ctx, cancel := context.WithTimeout(context.Background(), 200*time.Millisecond)
	defer cancel()
	if d, err := client.Acquire(ctx, Request{}); d.Allowed || d.Reason != LimitExceeded || err != nil {
		t.Errorf("the deadline passed: got %+v and %v", d, err)
	}
	cancel()
	d, err := client.Acquire(ctx, Request{})
	if d.Allowed || d.Reason != StoreUnavailable || d.Source != SourceClient || d.Err == nil || err != nil {
		t.Errorf("no decision yet: got %+v and %v", d, err)
	}
}

// startHolding starts a server that allows checks, and holds those with a wait until letGo. It sends their waits to held.
func startHolding(t *testing.T, size int) (client *Client, held chan int64, letGo func()) {
	t.Helper()
	held = make(chan int64, 16)
	open := make(chan struct{})
	letGo = sync.OnceFunc(func() { close(open) })
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var check struct {
			WaitMs int64 `json:"wait_ms"`
		}
		if err := json.NewDecoder(r.Body).Decode(&check); err != nil {
			t.Error(err)
		}
		if check.WaitMs > 0 {
			held <- check.WaitMs
			<-open
		}
		fmt.Fprint(w, `{"allowed":true,"source":"store"}`)
	}))
	t.Cleanup(server.Close)
	t.Cleanup(letGo)
	client = &Client{URL: server.URL, Timeout: patience, Logger: slog.New(slog.NewTextHandler(io.Discard, nil))}
	client.client()
	client.places = newPlaces(size)
	return client, held, letGo
}

func TestPlainChecksAreAnsweredBesideChecksWithAWait(t *testing.T) {
	client, held, letGo := startHolding(t, 2)
	decisions := make(chan Decision, 2)
	for range 2 {
		go func() {
			d, _ := client.Check(context.Background(), Request{Wait: 5 * time.Second})
			decisions <- d
		}()
	}
	first := <-held
	for start, calls := time.Now(), 0; calls <= tripsAfter || time.Since(start) < 100*time.Millisecond; calls++ {
		if d, err := client.Check(context.Background(), Request{}); d.Source != "store" || err != nil {
			t.Errorf("got %+v and %v", d, err)
		}
	}
	// The other check finds a place when the first has ended. What it waited for the place is no longer in its wait.
	letGo()
	if second := <-held; second >= first {
		t.Errorf("waits %d ms after one of %d ms", second, first)
	}
	for range 2 {
		if d := <-decisions; d.Source != "store" {
			t.Errorf("got %+v", d)
		}
	}
}

func TestALackOfPlacesIsNoFailureOfTheServer(t *testing.T) {
	client, held, letGo := startHolding(t, 1)
	done := make(chan struct{})
	client.Timeout = 50 * time.Millisecond
	go func() {
		defer close(done)
		_, _ = client.Check(context.Background(), Request{Wait: patience})
	}()
	<-held
	for range tripsAfter + 1 {
		for wait, why := range map[time.Duration]string{
			0:                     "all 1 connections are in use",
			10 * time.Millisecond: "calls with a Wait use 1 of 1 connections",
		} {
			d, err := client.Check(context.Background(), Request{Wait: wait})
			if d.Source != SourceClient || err != nil || !strings.Contains(fmt.Sprint(d.Err), why) {
				t.Errorf("a wait of %v: got %+v and %v", wait, d, err)
			}
		}
	}
	if client.health.failures != 0 {
		t.Errorf("%d failures", client.health.failures)
	}
	letGo()
	<-done
}

func TestAWaitIsWhatIsLeftOnceThereIsAConnection(t *testing.T) {
	client, held, letGo := startHolding(t, 2)
	for range 2 {
		client.places.all <- struct{}{}
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_, _ = client.Check(context.Background(), Request{Wait: time.Second})
	}()
	until(t, func() bool { return len(client.places.waits) == 1 }, func() string { return "no place for a wait" })
	time.Sleep(200 * time.Millisecond)
	for range 2 {
		<-client.places.all
	}
	if wait := <-held; wait > 850 {
		t.Errorf("waits %d ms", wait)
	}
	letGo()
	<-done
}

func TestALateCallerIsNoFailureOfTheServer(t *testing.T) {
	server, client := startAnswering(t, 200, `{"allowed":true,"source":"store"}`)
	for _, wait := range []time.Duration{-time.Second, -time.Hour, math.MinInt64, math.MaxInt64} {
		for range tripsAfter {
			if d, err := client.Check(context.Background(), Request{Wait: wait}); d.Source != "store" || err != nil {
				t.Errorf("a wait of %v: got %+v and %v", wait, d, err)
			}
		}
	}
	if calls := server.calls.Load(); calls != 4*tripsAfter || client.health.failures != 0 {
		t.Errorf("%d calls, %d failures", calls, client.health.failures)
	}
}

func TestCallsOfAReservationDoNotWaitWhileTheServerIsLeftAlone(t *testing.T) {
	server, client := startAnswering(t, 200, `{"result":"done"}`)
	client.health.failures, client.health.retryAt = tripsAfter, time.Now().Add(time.Hour)
	if outcome, err := client.Settle(context.Background(), "AQAB", nil); outcome != Unavailable || err != nil {
		t.Errorf("got %q and %v", outcome, err)
	}
	if calls := server.calls.Load(); calls != 0 || client.health.failures != tripsAfter {
		t.Errorf("%d calls, %d failures", calls, client.health.failures)
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
			fmt.Fprint(w, `{"detail":"refused"}`)
		default:
			fmt.Fprint(w, `{"result":"done"}`)
		}
	}))
	defer server.Close()
	client := &Client{URL: server.URL, Timeout: patience}
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

func TestAClientThatHasGoneIsLimited(t *testing.T) {
	_, client := startAnswering(t, 200, `{"allowed":false,"reason":"limit-exceeded","source":"store"}`)
	gone, cancel := context.WithCancel(context.Background())
	cancel()
	app := http.HandlerFunc(func(http.ResponseWriter, *http.Request) { t.Error("the handler runs") })
	recorder := httptest.NewRecorder()
	(&RateLimit{Client: client}).Handler(app).ServeHTTP(recorder, httptest.NewRequest("GET", "/", nil).WithContext(gone))
	if recorder.Code != http.StatusTooManyRequests {
		t.Errorf("status %d", recorder.Code)
	}
}

func TestAnyTextBecomesAValueThatTheServerAccepts(t *testing.T) {
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
}

func TestAnErrorOfFlushReachesTheHandler(t *testing.T) {
	var adding http.ResponseWriter = &addingWriter{ResponseWriter: brokenWriter{httptest.NewRecorder()}}
	if err := http.NewResponseController(adding).Flush(); err != io.ErrClosedPipe {
		t.Errorf("got %v", err)
	}
}

type brokenWriter struct{ http.ResponseWriter }

func (brokenWriter) FlushError() error { return io.ErrClosedPipe }

func TestAHandlerBehindTheMiddlewareCanHijack(t *testing.T) {
	_, client := startAnswering(t, 200, `{"allowed":true,"source":"store","headers":{"RateLimit":"x"}}`)
	limit := &RateLimit{Client: client}
	app := httptest.NewServer(limit.Handler(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		hijacker, can := w.(http.Hijacker)
		if !can {
			http.Error(w, "no http.Hijacker", http.StatusInternalServerError)
			return
		}
		connection, _, err := hijacker.Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		defer connection.Close()
		fmt.Fprint(connection, "HTTP/1.1 204 No Content\r\nConnection: close\r\n\r\n")
	})))
	defer app.Close()
	response, err := http.Get(app.URL)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusNoContent {
		t.Errorf("status %d", response.StatusCode)
	}
}
