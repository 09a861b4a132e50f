package spillgate

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// newTestLog makes a log with a clock that stands still, and returns its lines since the last call, and what moves the clock.
func newTestLog() (log *healthLog, lines func() string, pass func(time.Duration)) {
	var written bytes.Buffer
	withoutTime := func(_ []string, a slog.Attr) slog.Attr {
		if a.Key == slog.TimeKey {
			return slog.Attr{}
		}
		return a
	}
	now := time.Now()
	log = newHealthLog(slog.New(slog.NewTextHandler(&written, &slog.HandlerOptions{ReplaceAttr: withoutTime})), OnFailureAllow)
	log.now = func() time.Time { return now }
	lines = func() string {
		defer written.Reset()
		return written.String()
	}
	return log, lines, func(d time.Duration) { now = now.Add(d) }
}

func TestAnOutageIsLoggedOnceWhenItBeginsAndOnceWhenItEnds(t *testing.T) {
	log, lines, _ := newTestLog()
	fails, answers := change{hasFailed: true}, change{hasAnswered: true}
	log.changed(answers, nil)
	for range 5 {
		log.changed(fails, errTimeout)
	}
	for range 5 {
		log.changed(answers, nil)
	}
	want := "level=WARN msg=\"Spillgate does not answer (the server did not answer in time)\" on_failure=allow\n" +
		"level=WARN msg=\"Spillgate answers again\"\n"
	if got := lines(); got != want {
		t.Errorf("got %s", got)
	}
}

func TestAnOutageThatBeginsWithinThePauseIsLoggedWhenThePauseIsOver(t *testing.T) {
	log, lines, pass := newTestLog()
	fails, answers := change{hasFailed: true}, change{hasAnswered: true}
	log.changed(fails, errTimeout)
	log.changed(answers, nil)
	lines()
	for range 3 {
		// It comes and goes within the pause.
		log.changed(fails, errTimeout)
		log.changed(answers, nil)
	}
	log.changed(fails, errTimeout)
	pass(logPause - time.Millisecond)
	log.changed(fails, errTimeout)
	if got := lines(); got != "" {
		t.Errorf("within the pause: %s", got)
	}
	pass(time.Millisecond)
	log.changed(fails, errTimeout)
	log.changed(fails, errTimeout)
	log.changed(answers, nil)
	if got := lines(); strings.Count(got, "does not answer") != 1 || strings.Count(got, "answers again") != 1 {
		t.Errorf("after the pause: %s", got)
	}
}

func TestARefusedRequestIsLoggedOnceForEachCounterInTenSeconds(t *testing.T) {
	_, client := startAnswering(t, 200, `{"error":{"title":"Bad Request","status":400,"detail":"a count of 0 allows nothing"}}`)
	var lines func() string
	var pass func(time.Duration)
	client.log, lines, pass = newTestLog()
	limit := newRateLimit(t, client, RateLimitOptions{})
	mux := http.NewServeMux()
	mux.Handle("GET /users/{id}", limit.Route("0/minute", answering(200)))
	mux.Handle("POST /login", limit.Route("0/minute", answering(200)))
	request := func() {
		get, post := requestFrom("192.0.2.1", "GET", "/users/7"), requestFrom("192.0.2.1", "POST", "/login")
		if got := statuses(mux, get, get, post, post); got != "200 200 200 200" {
			t.Errorf("got %s", got)
		}
	}
	request()
	message := `level=WARN msg="Spillgate refuses a request (400: a count of 0 allows nothing)" counter="%s" on_failure=allow` + "\n"
	want := fmt.Sprintf(message, "GET /users/{id}") + fmt.Sprintf(message, "POST /login")
	if got := lines(); got != want {
		t.Errorf("got %s", got)
	}
	pass(logPause)
	request()
	if got := lines(); got != want {
		t.Errorf("after the pause: %s", got)
	}
}

func TestTheLogRemembersABoundedNumberOfCounters(t *testing.T) {
	log, lines, pass := newTestLog()
	flood := func() int {
		for i := range 10 * refusedMax {
			log.refused(fmt.Sprint(i), errors.New("refused"))
		}
		return strings.Count(lines(), "\n")
	}
	if got := flood(); got != refusedMax || len(log.refusedAt) != refusedMax {
		t.Errorf("%d lines, %d counters", got, len(log.refusedAt))
	}
	pass(logPause)
	if got := flood(); got != refusedMax || len(log.refusedAt) != refusedMax {
		t.Errorf("after the pause: %d lines, %d counters", got, len(log.refusedAt))
	}
}

const (
	unusedToken = `no rule uses the unit "token"`
	unusedUsr   = `no rule uses the attribute "usr"`
)

// startReporting starts a server that allows everything and answers with this JSON as `unused`.
func startReporting(t *testing.T, unused string) (client *Client, lines func() string) {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var items []json.RawMessage
		answer := `{"allowed":true,"source":"store","receipt":"AQAB","result":"done"}`
		if json.NewDecoder(r.Body).Decode(&items) == nil {
			answer = resultsOf(len(items), allows)
		}
		fmt.Fprintf(w, `%s,"unused":%s}`, strings.TrimSuffix(answer, "}"), unused)
	}))
	t.Cleanup(server.Close)
	client = newClient(t, Options{URL: server.URL, Timeout: patience})
	client.log, lines, _ = newTestLog()
	return client, lines
}

// decideInEachWay returns the decisions of all calls that make one.
func decideInEachWay(t *testing.T, client *Client) []Decision {
	t.Helper()
	ctx := context.Background()
	one, err := client.Check(ctx, Request{})
	waited, waitErr := client.Check(ctx, Request{Wait: time.Millisecond})
	batch, batchErr := client.CheckBatch(ctx, []Request{{}, {}})
	job, jobErr := client.Reserve(ctx, Request{}, 0)
	if err := errors.Join(err, waitErr, batchErr, jobErr); err != nil {
		t.Fatal(err)
	}
	return append(batch, one, waited, job.Decision)
}

func TestEveryDecisionHasTheUnusedNamesAndTheLogNamesEachOnce(t *testing.T) {
	text, _ := json.Marshal([]string{unusedToken, unusedUsr})
	client, lines := startReporting(t, string(text))
	for range 2 {
		for _, d := range decideInEachWay(t, client) {
			if !slices.Equal(d.Unused, []string{unusedToken, unusedUsr}) {
				t.Errorf("got %q", d.Unused)
			}
		}
	}
	if got, want := lines(), unusedLine(unusedToken)+unusedLine(unusedUsr); got != want {
		t.Errorf("got %s", got)
	}
}

func TestASettlementReportsUnusedNamesInTheLog(t *testing.T) {
	text, _ := json.Marshal([]string{unusedToken})
	client, lines := startReporting(t, string(text))
	if outcome, err := client.Settle(context.Background(), "AQAB", Cost{"token": 1}); outcome != OutcomeDone || err != nil {
		t.Errorf("got %q and %v", outcome, err)
	}
	if got := lines(); got != unusedLine(unusedToken) {
		t.Errorf("got %s", got)
	}
}

func unusedLine(sentence string) string {
	return fmt.Sprintf("level=WARN msg=\"Spillgate reports an unused name\" sentence=%q\n", sentence)
}

func TestUnusedNamesOfAWrongTypeAndTooManyCountAsAbsent(t *testing.T) {
	tooMany, _ := json.Marshal(slices.Repeat([]string{"x"}, unusedMax+1))
	for _, unused := range []string{`null`, `[]`, `7`, `"x"`, `{"a":"b"}`, `["x",7]`, `[null]`, `[[]]`, string(tooMany)} {
		client, lines := startReporting(t, unused)
		for _, d := range decideInEachWay(t, client) {
			if !d.Allowed || d.Source != "store" || len(d.Unused) != 0 {
				t.Errorf("%s: got %+v", unused, d)
			}
		}
		if outcome, err := client.Settle(context.Background(), "AQAB", nil); outcome != OutcomeDone || err != nil {
			t.Errorf("%s: got %q and %v", unused, outcome, err)
		}
		if got := lines(); got != "" {
			t.Errorf("%s: got %s", unused, got)
		}
	}
}

func TestADecisionHasUpTo64UnusedNames(t *testing.T) {
	most := slices.Repeat([]string{"x"}, unusedMax)
	text, _ := json.Marshal(most)
	client, _ := startReporting(t, string(text))
	for _, d := range decideInEachWay(t, client) {
		if !slices.Equal(d.Unused, most) {
			t.Errorf("got %q", d.Unused)
		}
	}
}

func TestASentenceOfTheServerForgesNoLineInTheDefaultLogger(t *testing.T) {
	var written bytes.Buffer
	output, flags := log.Writer(), log.Flags()
	defer func() { log.SetOutput(output); log.SetFlags(flags) }()
	log.SetOutput(&written)
	log.SetFlags(0)
	newHealthLog(slog.Default(), OnFailureAllow).unused([]string{"x\r\nERROR \x1b[31mforged"})
	want := `WARN Spillgate reports an unused name sentence="x\r\nERROR \x1b[31mforged"` + "\n"
	if got := written.String(); got != want {
		t.Errorf("got %q", got)
	}
}

func TestTheLogNamesAtMost64UnusedNamesAndTheStartOfEach(t *testing.T) {
	log, lines, _ := newTestLog()
	log.unused([]string{strings.Repeat("x", 5000)})
	if got := lines(); len(got) > 2*messageMax {
		t.Errorf("%d bytes", len(got))
	}
	for i := range 10 * reportedMax {
		log.unused([]string{fmt.Sprint(i)})
	}
	if got := strings.Count(lines(), "\n"); got != reportedMax-1 || len(log.reported) != reportedMax {
		t.Errorf("%d lines, %d names", got, len(log.reported))
	}
}

func TestAClientLogsAnOutageOfItsServer(t *testing.T) {
	var isBack atomic.Bool
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if !isBack.Load() {
			w.WriteHeader(http.StatusInternalServerError)
		}
		fmt.Fprint(w, resultsOf(1, allows))
	}))
	defer server.Close()
	client := newClient(t, Options{URL: server.URL, Timeout: patience})
	var lines func() string
	client.log, lines, _ = newTestLog()
	for range 3 {
		_, _ = client.Check(context.Background(), Request{})
	}
	if got := lines(); strings.Count(got, "\n") != 1 || !strings.Contains(got, "Spillgate does not answer (the answer is not one of Spillgate") {
		t.Errorf("got %s", got)
	}
	isBack.Store(true)
	until(t, func() bool {
		d, _ := client.Check(context.Background(), Request{})
		return d.Source == "store"
	}, func() string { return "the server does not decide" })
	if got := lines(); got != "level=WARN msg=\"Spillgate answers again\"\n" {
		t.Errorf("got %s", got)
	}
}
