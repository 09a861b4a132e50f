// Burst is an application on net/http for the test of bursts.
package main

import (
	"encoding/json"
	"fmt"
	"log"
	"net"
	"net/http"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"

	spillgate "github.com/spillgate/spillgate/clients/go"
)

func main() {
	var counts counts
	onFailure := spillgate.OnFailureAllow
	if os.Getenv("ON_FAILURE") == "deny" {
		onFailure = spillgate.OnFailureDeny
	}
	client, err := spillgate.New(spillgate.Options{
		URL: os.Getenv("SPILLGATE_URL"), OnFailure: onFailure, Observe: counts.observe,
	})
	if err != nil {
		log.Fatal(err)
	}
	mux := http.NewServeMux()
	mux.HandleFunc("/counts", counts.serve)
	mux.HandleFunc("/work", func(w http.ResponseWriter, r *http.Request) {
		spendHalf(r)
		decision, _ := spillgate.FromContext(r.Context())
		if decision.Err != nil {
			fmt.Fprintf(w, "source=%s %v", decision.Source, decision.Err)
		} else {
			fmt.Fprintf(w, "source=%s", decision.Source)
		}
	})
	limit, err := spillgate.NewRateLimit(client, spillgate.RateLimitOptions{Attributes: attributesOf})
	if err != nil {
		log.Fatal(err)
	}
	limited := limit.Handler(mux)
	spending := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		spendHalf(r)
		limited.ServeHTTP(w, r)
	})

	// The socket on which the generator's connections wait.
	descriptor, err := strconv.Atoi(os.Getenv("LISTEN_FD"))
	if err != nil {
		log.Fatal(err)
	}
	listener, err := net.FileListener(os.NewFile(uintptr(descriptor), "listening"))
	if err != nil {
		log.Fatal(err)
	}
	log.Fatal(http.Serve(listener, spending))
}

// Decisions by their source, as the hook for metrics sees them: more than the handler, which sees no denial.
type counts struct {
	mutex   sync.Mutex
	decided map[string]int
}

func (c *counts) observe(call spillgate.Call) {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	if c.decided == nil {
		c.decided = make(map[string]int)
	}
	for _, decision := range call.Decisions {
		c.decided[string(decision.Source)]++
	}
}

func (c *counts) serve(w http.ResponseWriter, _ *http.Request) {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	_ = json.NewEncoder(w).Encode(c.decided)
}

// attributesOf returns the attributes of a request, or false for one that is not limited.
func attributesOf(r *http.Request) (map[string]string, bool) {
	query := r.URL.Query()
	attributes := map[string]string{"run": query.Get("run")}
	switch query.Get("kind") {
	case "malformed":
		// The server refuses a name above 64 bytes.
		attributes[strings.Repeat("n", 65)] = ""
	case "long":
		attributes["run"] += strings.Repeat("x", 10_000)
	}
	return attributes, r.URL.Path == "/work"
}

// spendHalf computes for half of the CPU time that the request asks for.
func spendHalf(r *http.Request) {
	microseconds, _ := strconv.ParseInt(r.URL.Query().Get("cpu"), 10, 64)
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	for start := usedByThread(); usedByThread()-start < microseconds/2; {
	}
}

func usedByThread() int64 {
	const thread = 1
	var usage syscall.Rusage
	if err := syscall.Getrusage(thread, &usage); err != nil {
		log.Fatal(err)
	}
	return (usage.Utime.Sec+usage.Stime.Sec)*1e6 + usage.Utime.Usec + usage.Stime.Usec
}
