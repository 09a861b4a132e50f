package spillgate

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// A burst is what came of the requests of a burst.
type burst struct {
	allowed, denied, withoutServer, other atomic.Int64
	// reasons has why the server did not decide.
	reasons sync.Map
}

// spin takes CPU time, as an application does.
func spin(duration time.Duration) {
	for start := time.Now(); time.Since(start) < duration; {
	}
}

// besideABusyProcess leaves the test two threads, on a machine of which another process has a core.
func besideABusyProcess(t *testing.T) {
	t.Helper()
	before := runtime.GOMAXPROCS(2)
	t.Cleanup(func() { runtime.GOMAXPROCS(before) })
	run(t, exec.Command("sh", "-c", "while :; do :; done"))
}

func TestABurstAdmitsExactlyTheLimit(t *testing.T) {
	sizes, works := []int{300, 1000}, []time.Duration{0, time.Millisecond, 4 * time.Millisecond}
	timeout := patienceInBursts
	if os.Getenv("SPILLGATE_BURSTS") == "all" {
		sizes, timeout = []int{300, 1000, 2000, 5000}, DefaultTimeout
	}
	besideABusyProcess(t)
	server := startServer(t, "[[rule]]\nname = \"api\"\nkey = [\"ip\"]\nlimits = [\"150/day\"]\n", false, "")
	for _, size := range sizes {
		for _, work := range works {
			t.Run(fmt.Sprintf("%d requests of %v", size, work), func(t *testing.T) {
				runs++
				client := newClient(t, Options{URL: server.url, Timeout: timeout})
				limit := newRateLimit(t, client, RateLimitOptions{TrustedProxies: []string{"127.0.0.1"}})
				result := sendBurst(t, limit, size, work, func(int) string { return fmt.Sprintf("192.0.2.%d", runs) })
				if result.allowed.Load() != 150 || result.withoutServer.Load() != 0 || result.denied.Load() != int64(size)-150 {
					t.Errorf("%d allowed, %d denied, %d without the server, %d other",
						result.allowed.Load(), result.denied.Load(), result.withoutServer.Load(), result.other.Load())
				}
			})
		}
	}
}

// TestMalformedRequestsOfABurstCostTheOthersNothing has every tenth request refused by the server, and another tenth with a
// value that is too long.
func TestMalformedRequestsOfABurstCostTheOthersNothing(t *testing.T) {
	besideABusyProcess(t)
	server := startServer(t, "[[rule]]\nname = \"api\"\nkey = [\"group\"]\nlimits = [\"150/day\"]\n", false, "")
	client := newClient(t, Options{URL: server.url, OnFailure: OnFailureDeny, Timeout: patienceInBursts})
	options := RateLimitOptions{TrustedProxies: []string{"127.0.0.1"}}
	options.Attributes = func(r *http.Request) (map[string]string, bool) {
		switch r.Header.Get("X-Forwarded-For") {
		case malformed:
			return map[string]string{strings.Repeat("a", 1000): "a name that is too long"}, true
		case overlong:
			return map[string]string{"group": "all", "agent": strings.Repeat("\xff", 100_000)}, true
		}
		return map[string]string{"group": "all"}, true
	}
	result := sendBurst(t, newRateLimit(t, client, options), 1000, time.Millisecond, func(i int) string {
		switch i % 10 {
		case 3:
			return malformed
		case 7:
			return overlong
		}
		return "192.0.2.1"
	})
	if result.allowed.Load() != 150 || result.denied.Load() != 750 || result.other.Load() != 100 {
		t.Errorf("%d allowed, %d denied, %d refused", result.allowed.Load(), result.denied.Load(), result.other.Load())
	}
}

// A machine that is busy with other tests may leave the server itself without a processor for the default time-out. This one
// is still shorter than most calls of a burst take. SPILLGATE_BURSTS=all measures with the default, on a machine of its own.
const patienceInBursts = time.Second

const malformed, overlong = "192.0.2.3", "192.0.2.7"

// sendBurst sends all requests at once to an application that works before and after the middleware.
func sendBurst(t *testing.T, limit *RateLimit, size int, work time.Duration, ip func(int) string) *burst {
	t.Helper()
	result := &burst{}
	limited := limit.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if decision, _ := FromContext(r.Context()); decision.Source == SourceClient {
			result.withoutServer.Add(1)
			result.reasons.Store(decision.Err.Error(), true)
		}
		spin(work / 2)
		w.WriteHeader(http.StatusOK)
	}))
	app := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		spin(work / 2)
		limited.ServeHTTP(w, r)
	}))
	defer app.Close()
	transport := &http.Transport{DialContext: (&net.Dialer{Timeout: time.Minute}).DialContext}
	defer transport.CloseIdleConnections()
	start := time.Now()
	var all sync.WaitGroup
	for i := range size {
		all.Add(1)
		go func() {
			defer all.Done()
			request, err := http.NewRequest(http.MethodGet, app.URL+"/", nil)
			if err != nil {
				t.Error(err)
				return
			}
			request.Header.Set("X-Forwarded-For", ip(i))
			response, err := transport.RoundTrip(request)
			if err != nil {
				t.Error(err)
				return
			}
			defer response.Body.Close()
			_, _ = io.Copy(io.Discard, response.Body)
			switch response.StatusCode {
			case http.StatusOK:
				result.allowed.Add(1)
			case http.StatusTooManyRequests:
				result.denied.Add(1)
			default:
				result.other.Add(1)
			}
		}()
	}
	all.Wait()
	result.reasons.Range(func(reason, _ any) bool {
		t.Error(reason)
		return true
	})
	t.Logf("%d allowed, %d denied, %d without the server in %v",
		result.allowed.Load(), result.denied.Load(), result.withoutServer.Load(), time.Since(start).Round(time.Millisecond))
	return result
}
