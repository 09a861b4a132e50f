package spillgate

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"
)

// A gate is a server that holds calls until the test lets them go.
type gate struct {
	client *Client
	// arrived has the number of items of each call, 0 for a call that is no batch.
	arrived chan int
	// waits has the wait_ms of each check with a wait.
	waits chan int64
	lets  chan struct{}
	// letAll lets all calls go from now on.
	letAll func()
}

func newGate(t *testing.T, options Options) *gate {
	t.Helper()
	open := make(chan struct{})
	g := &gate{arrived: make(chan int, 1000), waits: make(chan int64, 1000), lets: make(chan struct{}), letAll: sync.OnceFunc(func() { close(open) })}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var items []json.RawMessage
		body := readBody(r)
		var one struct {
			WaitMs int64 `json:"wait_ms"`
		}
		if json.Unmarshal(body, &items) != nil {
			_ = json.Unmarshal(body, &one)
			g.waits <- one.WaitMs
		}
		g.arrived <- len(items)
		select {
		case <-g.lets:
		case <-open:
		}
		if items != nil {
			fmt.Fprint(w, resultsOf(len(items), allows))
			return
		}
		fmt.Fprint(w, strings.Replace(allows, "{", `{"result":"done",`, 1))
	}))
	t.Cleanup(server.Close)
	t.Cleanup(g.letAll)
	options.URL = server.URL
	if options.Timeout == 0 {
		options.Timeout = time.Hour
	}
	g.client = newClient(t, options)
	return g
}

// check starts checks, and returns once all of them are sent or gathered.
func (g *gate) check(t *testing.T, count int, ctx context.Context) <-chan Decision {
	t.Helper()
	decisions := make(chan Decision, count)
	for range count {
		before := g.known()
		go func() {
			d, _ := g.client.Check(ctx, Request{})
			decisions <- d
		}()
		until(t, func() bool { return g.known() > before }, func() string { return "a check is neither sent nor gathered" })
	}
	return decisions
}

func (g *gate) known() int {
	d := g.client.dispatcher
	d.lock.Lock()
	defer d.lock.Unlock()
	return len(d.flights) + d.gathered.Len()
}

func TestChecksGatherWhileTwoBatchesAreUnderWay(t *testing.T) {
	g := newGate(t, Options{})
	decisions := g.check(t, 12, context.Background())
	if first, second := <-g.arrived, <-g.arrived; first != 1 || second != 1 {
		t.Errorf("%d and %d checks in the first batches", first, second)
	}
	g.lets <- struct{}{}
	if third := <-g.arrived; third != 10 {
		t.Errorf("%d checks in the third batch", third)
	}
	g.letAll()
	for range 12 {
		if d := <-decisions; d.Source != "store" {
			t.Errorf("got %+v", d)
		}
	}
}

func TestABatchThatStallsDoesNotHoldUpTheRest(t *testing.T) {
	g := newGate(t, Options{Timeout: 10 * time.Second})
	g.check(t, 3, context.Background())
	<-g.arrived
	<-g.arrived
	// After a second, a tenth of the time-out.
	if third := <-g.arrived; third != 1 {
		t.Errorf("%d checks in the third batch", third)
	}
}

func TestACallerThatLeavesIsNotSentAndDoesNotHurtItsBatch(t *testing.T) {
	g := newGate(t, Options{})
	ctx, cancel := context.WithCancel(context.Background())
	sent := g.check(t, 2, ctx)
	<-g.arrived
	<-g.arrived
	gone, stays := g.check(t, 3, ctx), g.check(t, 2, context.Background())
	cancel()
	for range 3 {
		if d := <-gone; !errors.Is(d.Err, context.Canceled) {
			t.Errorf("got %+v", d)
		}
	}
	for range 2 {
		if d := <-sent; !errors.Is(d.Err, context.Canceled) {
			t.Errorf("got %+v", d)
		}
	}
	g.letAll()
	if third := <-g.arrived; third != 2 {
		t.Errorf("%d checks in the third batch", third)
	}
	for range 2 {
		if d := <-stays; d.Source != "store" {
			t.Errorf("got %+v", d)
		}
	}
	if g.client.dispatcher.breaker.failures != 0 {
		t.Error("a caller that left counts as a failure of the server")
	}
}

func TestAtMost64CallsAreUnderWay(t *testing.T) {
	g := newGate(t, Options{})
	done := make(chan Outcome, 100)
	for range 100 {
		go func() {
			outcome, _ := g.client.Release(context.Background(), "AQAB")
			done <- outcome
		}()
	}
	for range connections {
		<-g.arrived
	}
	d := g.client.dispatcher
	until(t, func() bool { d.lock.Lock(); defer d.lock.Unlock(); return d.tickets.Len() == 100-connections }, func() string { return "not all wait" })
	select {
	case <-g.arrived:
		t.Error("a 65th call was sent")
	default:
	}
	g.letAll()
	for range 100 {
		if outcome := <-done; outcome != OutcomeDone {
			t.Errorf("got %q", outcome)
		}
	}
}

func TestChecksAreAnsweredWhileHalfOfTheConnectionsCarryAWait(t *testing.T) {
	g := newGate(t, Options{})
	decisions := make(chan Decision, connections)
	wait := func(wait time.Duration) {
		go func() {
			d, _ := g.client.Check(context.Background(), Request{Wait: wait})
			decisions <- d
		}()
	}
	for range waitsAtOnce {
		wait(time.Minute)
		<-g.arrived
		<-g.waits
	}
	// One more finds no place during its wait, so it needs none and is decided at once; and one has to wait for its place.
	wait(100 * time.Millisecond)
	if items := <-g.arrived; items != 1 {
		t.Errorf("a check whose wait is over came with %d items", items)
	}
	wait(time.Minute)
	d := g.client.dispatcher
	until(t, func() bool { d.lock.Lock(); defer d.lock.Unlock(); return d.waitTickets.Len() == 1 }, func() string { return "it does not wait for its place" })
	time.Sleep(50 * time.Millisecond)
	g.letAll()
	if left := <-g.waits; left >= 60_000 {
		t.Errorf("the wait for its place is no part of its wait: %d ms are left", left)
	}
	for range waitsAtOnce + 2 {
		if d := <-decisions; d.Source != "store" {
			t.Errorf("got %+v", d)
		}
	}
}

func TestWhatWaitsToBeSentFailsOnceTheServerIsSilentAndIsNoFailureOfIt(t *testing.T) {
	// The calls under way are checks with a wait, of whose silence nothing follows, and calls that fill the other places.
	g := newGate(t, Options{Timeout: 200 * time.Millisecond})
	d := g.client.dispatcher
	d.lock.Lock()
	for range connections {
		d.takeOff(time.Hour)
	}
	d.lock.Unlock()
	decision, err := g.client.Check(context.Background(), Request{})
	if err != nil || !errors.Is(decision.Err, ErrNotSent) || decision.Source != SourceClient {
		t.Errorf("got %+v and %v", decision, err)
	}
	if outcome, err := g.client.Release(context.Background(), "AQAB"); outcome != OutcomeUnavailable || err != nil {
		t.Errorf("got %q and %v", outcome, err)
	}
	if d.breaker.failures != 0 {
		t.Errorf("%d failures", d.breaker.failures)
	}
}

func TestABatchHasAtMost512KiB(t *testing.T) {
	g := newGate(t, Options{})
	<-g.sendOne(t)
	<-g.sendOne(t)
	large := Request{Attributes: map[string]string{}}
	for i := range 30 {
		large.Attributes[fmt.Sprint(i)] = strings.Repeat("a", valueMax)
	}
	for range 5 {
		before := g.known()
		go func() { _, _ = g.client.Check(context.Background(), large) }()
		until(t, func() bool { return g.known() > before }, func() string { return "not gathered" })
	}
	g.letAll()
	if third, fourth := <-g.arrived, <-g.arrived; third+fourth != 5 || third > 4 {
		t.Errorf("%d and %d checks of 120 KiB in a batch", third, fourth)
	}
}

// sendOne sends a check, and returns once the server has it.
func (g *gate) sendOne(t *testing.T) <-chan int {
	t.Helper()
	g.check(t, 1, context.Background())
	return g.arrived
}

func TestTheClockStopsWhenNothingIsUnderWay(t *testing.T) {
	_, client := startAnswering(t, 200, allows)
	if d, err := client.Check(context.Background(), Request{}); d.Source != "store" || err != nil {
		t.Fatalf("got %+v and %v", d, err)
	}
	d := client.dispatcher
	until(t, func() bool { d.lock.Lock(); defer d.lock.Unlock(); return !d.clock.isRunning }, func() string { return "the clock runs" })
	if len(d.flights) != 0 {
		t.Errorf("%d calls under way", len(d.flights))
	}
}
