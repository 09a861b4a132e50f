package spillgate

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"
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
