package spillgate

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"testing"
)

func TestAClientThatHasGoneIsLimited(t *testing.T) {
	_, client := startAnswering(t, 200, `{"allowed":false,"reason":"limit-exceeded","source":"store"}`)
	gone, cancel := context.WithCancel(context.Background())
	cancel()
	app := http.HandlerFunc(func(http.ResponseWriter, *http.Request) { t.Error("the handler runs") })
	recorder := httptest.NewRecorder()
	limit := newRateLimit(t, client, RateLimitOptions{})
	limit.Handler(app).ServeHTTP(recorder, httptest.NewRequest("GET", "/", nil).WithContext(gone))
	if recorder.Code != http.StatusTooManyRequests {
		t.Errorf("status %d", recorder.Code)
	}
}

func TestAnErrorOfFlushReachesTheHandler(t *testing.T) {
	var limited http.ResponseWriter = &limitedWriter{ResponseWriter: brokenWriter{httptest.NewRecorder()}, request: context.Background()}
	if err := http.NewResponseController(limited).Flush(); err != io.ErrClosedPipe {
		t.Errorf("got %v", err)
	}
}

type brokenWriter struct{ http.ResponseWriter }

func (brokenWriter) FlushError() error { return io.ErrClosedPipe }

func TestAHandlerBehindTheMiddlewareCanHijack(t *testing.T) {
	_, client := startAnswering(t, 200, `{"allowed":true,"source":"store","headers":{"RateLimit":"x"}}`)
	limit := newRateLimit(t, client, RateLimitOptions{})
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
