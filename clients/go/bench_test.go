package spillgate

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"testing"
	"time"
)

// TestBench prints the median latency of the middleware, beside a plain keep-alive POST of the same bytes to the same
// server: SPILLGATE_BENCH=5000 go test -run TestBench -v
func TestBench(t *testing.T) {
	rounds := 0
	if _, err := fmt.Sscan(os.Getenv("SPILLGATE_BENCH"), &rounds); err != nil {
		t.Skip("a measurement: set SPILLGATE_BENCH to a number of rounds")
	}
	policy := "[[rule]]\nname = \"api\"\nkey = [\"ip\"]\nlimits = [\"1000000/second\"]\n"
	body := `{"attributes":{"ip":"203.0.113.7","method":"GET","path":"/login"},"headers":"ietf"}`
	server := startServer(t, policy, false, "")
	plain := func() {
		response, err := http.Post(server.url+"/v1/check", "application/json", strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		defer response.Body.Close()
		if _, err := io.ReadAll(response.Body); err != nil {
			t.Fatal(err)
		}
	}
	app := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusOK) })
	client := newClient(t, Options{URL: server.url, OnFailure: OnFailureDeny, Timeout: 5 * time.Second})
	limited := newRateLimit(t, client, RateLimitOptions{}).Handler(app)
	// A server has read the request before the middleware sees it.
	request := httptest.NewRequest(http.MethodGet, "/login", nil)
	request.RemoteAddr = "203.0.113.7:50000"
	middleware := func() {
		recorder := httptest.NewRecorder()
		limited.ServeHTTP(recorder, request)
		if recorder.Code != http.StatusOK || recorder.Header().Get("RateLimit") == "" {
			t.Fatalf("%d: the request was denied, or not limited", recorder.Code)
		}
	}
	calls := []func(){plain, middleware}
	took := [2][]time.Duration{}
	for round := -500; round < rounds; round++ {
		for i, call := range calls {
			start := time.Now()
			call()
			if round >= 0 {
				took[i] = append(took[i], time.Since(start))
			}
		}
	}
	median := func(i int) float64 {
		slices.Sort(took[i])
		return float64(took[i][rounds/2].Nanoseconds()) / 1000
	}
	fmt.Printf("| middleware | plain POST, µs | middleware, µs | ratio |\n|---|---|---|---|\n")
	fmt.Printf("| net/http | %.0f | %.0f | %.2f |\n", median(0), median(1), median(1)/median(0))
}
