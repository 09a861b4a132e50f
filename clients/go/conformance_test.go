package spillgate

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

// TestConformance runs clients/conformance/cases.json on memory and on Redis.
func TestConformance(t *testing.T) {
	folder := conformanceFolder()
	policy, err := os.ReadFile(filepath.Join(folder, "policy.toml"))
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(folder, "cases.json"))
	if err != nil {
		t.Fatal(err)
	}
	var suite struct{ Cases []*conformanceCase }
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&suite); err != nil {
		t.Fatal(err)
	}
	for _, store := range []string{"memory", "Redis"} {
		t.Run(store, func(t *testing.T) {
			if _, err := exec.LookPath("redis-server"); store == "Redis" && err != nil {
				t.Skip("left out: there is no redis-server")
			}
			server := startServer(t, string(policy), store == "Redis", testToken)
			client := newTestClient(t, server, caseOptions{}, nil)
			until(t, func() bool {
				// On Redis the first decisions may come before the first connection.
				start, err := client.Check(context.Background(), Request{Key: "start", Limit: &InlineLimit{Quota: "1000/second"}})
				return err == nil && !start.Degraded
			}, func() string { return "the server has no store" })
			for _, state := range []string{"up", "hung", "down"} {
				switch state {
				case "hung":
					server.signal(t, syscall.SIGSTOP)
				case "down":
					server.signal(t, syscall.SIGKILL)
				}
				for _, played := range suite.Cases {
					if played.Server == state || (played.Server == "" && state == "up") {
						t.Run(played.Name, func(t *testing.T) { play(t, played, server) })
					}
				}
				if state == "hung" {
					server.signal(t, syscall.SIGCONT)
				}
			}
		})
	}
}

func conformanceFolder() string {
	if folder := os.Getenv("SPILLGATE_CONFORMANCE"); folder != "" {
		return folder
	}
	return "../conformance"
}

type conformanceCase struct {
	Name    string
	Server  string
	Options caseOptions
	Steps   []json.RawMessage
}

type caseOptions struct {
	OnFailure      string   `json:"on_failure"`
	TimeoutMs      int64    `json:"timeout_ms"`
	Token          string   `json:"token"`
	Cost           *int64   `json:"cost"`
	Headers        string   `json:"headers"`
	TrustedProxies []string `json:"trusted_proxies"`
}

type step struct {
	Server  string
	PauseMs int64 `json:"pause_ms"`
	HTTP    *struct {
		Peer, Method, Path string
		Headers            [][2]string
	}
	Call           string
	With           json.RawMessage
	Expect         any
	ExpectProblem  any              `json:"expect_problem"`
	EndsBy         string           `json:"ends_by"`
	Settles        map[string]int64 `json:"settles"`
	DeadlineMs     int64            `json:"deadline_ms"`
	Repeat         int
	WithinMs       *int64 `json:"within_ms"`
	TakesAtLeastMs int64  `json:"takes_at_least_ms"`
}

// A machine that is busy with something else is no failure: only cases about failures have a short time-out.
const patience = 20 * time.Second

func newTestClient(t *testing.T, server *testServer, options caseOptions, observe func(Call)) *Client {
	t.Helper()
	o := Options{URL: server.url, Token: testToken, Timeout: patience, Observe: observe}
	if options.Token != "" {
		o.Token = options.Token
	}
	if options.TimeoutMs != 0 {
		o.Timeout = time.Duration(options.TimeoutMs) * time.Millisecond
	}
	if options.OnFailure == "deny" {
		o.OnFailure = OnFailureDeny
	}
	return newClient(t, o)
}

// newClient makes a client that logs nothing.
func newClient(t testing.TB, options Options) *Client {
	t.Helper()
	if options.Logger == nil {
		options.Logger = slog.New(slog.NewTextHandler(io.Discard, nil))
	}
	client, err := New(options)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	return client
}

func newRateLimit(t testing.TB, client *Client, options RateLimitOptions) *RateLimit {
	t.Helper()
	limit, err := NewRateLimit(client, options)
	if err != nil {
		t.Fatal(err)
	}
	return limit
}

type player struct {
	t       *testing.T
	server  *testServer
	client  *Client
	options caseOptions
	receipt string
	// operations are those that the hook for metrics saw during a call.
	operations []string
}

var runs int

func play(t *testing.T, played *conformanceCase, server *testServer) {
	runs++
	p := &player{t: t, server: server, options: played.Options}
	p.client = newTestClient(t, server, played.Options, func(call Call) { p.operations = append(p.operations, call.Operation) })
	for number, text := range played.Steps {
		filled := strings.NewReplacer("{run}", fmt.Sprint(runs), "{long}", strings.Repeat("a", 5000)).Replace(string(text))
		var s step
		decoder := json.NewDecoder(strings.NewReader(filled))
		decoder.DisallowUnknownFields()
		if err := decoder.Decode(&s); err != nil {
			t.Fatal(err)
		}
		for range max(s.Repeat, 1) {
			start := time.Now()
			err := p.step(s)
			took := time.Since(start).Milliseconds()
			if err == nil && s.WithinMs != nil && took > *s.WithinMs {
				err = fmt.Errorf("took %d ms, at most %d expected", took, *s.WithinMs)
			}
			if err == nil && took < s.TakesAtLeastMs {
				err = fmt.Errorf("took %d ms, at least %d expected", took, s.TakesAtLeastMs)
			}
			if err != nil {
				t.Fatalf("step %d: %v", number+1, err)
			}
		}
	}
}

func (p *player) step(s step) error {
	switch {
	case s.Server == "hung":
		p.server.signal(p.t, syscall.SIGSTOP)
	case s.Server == "up":
		p.server.signal(p.t, syscall.SIGCONT)
	case s.PauseMs > 0:
		time.Sleep(time.Duration(s.PauseMs) * time.Millisecond)
	case s.HTTP != nil:
		return p.http(s)
	case s.ExpectProblem != nil:
		answer, err := p.call(s)
		var problem *ProblemError
		if !errors.As(err, &problem) {
			return fmt.Errorf("no problem, but %v and %w", answer, err)
		}
		return match(s.ExpectProblem, plain(problem), "problem")
	default:
		answer, err := p.call(s)
		if err != nil {
			return err
		}
		return match(s.Expect, plain(answer), s.Call)
	}
	return nil
}

func (p *player) http(s step) error {
	reached := false
	app := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		reached = true
		if r.URL.Path == "/own-fields" {
			w.Header().Set("RateLimit", `"inner";r=7`)
		}
		fmt.Fprint(w, "ok")
	})
	options := RateLimitOptions{Headers: p.options.Headers, TrustedProxies: p.options.TrustedProxies}
	if p.options.Cost != nil {
		options.Cost = func(*http.Request) Cost { return Requests(*p.options.Cost) }
	}
	limit, err := NewRateLimit(p.client, options)
	if err != nil {
		return err
	}
	request := httptest.NewRequest(s.HTTP.Method, s.HTTP.Path, nil)
	request.RemoteAddr = s.HTTP.Peer + ":50000"
	for _, field := range s.HTTP.Headers {
		request.Header.Add(field[0], field[1])
	}
	recorder := httptest.NewRecorder()
	limit.Handler(app).ServeHTTP(recorder, request)
	response := recorder.Result()
	headers := map[string]any{}
	for name, values := range response.Header {
		headers[strings.ToLower(name)] = strings.Join(values, ", ")
	}
	expect := s.Expect.(map[string]any)
	expected := map[string]any{}
	if fields, has := expect["headers"].(map[string]any); has {
		for name, value := range fields {
			expected[strings.ToLower(name)] = value
		}
	}
	if err := match(expect["status"], float64(response.StatusCode), "status"); err != nil {
		return err
	}
	if err := match(expected, headers, "headers"); err != nil {
		return err
	}
	if err := match(expect["reaches_app"], reached, "reaches_app"); err != nil {
		return err
	}
	if body, has := expect["json"]; has {
		var written any
		if err := json.Unmarshal(recorder.Body.Bytes(), &written); err != nil {
			return err
		}
		return match(body, written, "json")
	}
	return nil
}

func (p *player) call(s step) (any, error) {
	p.operations = nil
	answer, err := p.answer(s)
	expected := s.Call
	switch s.Call {
	case "acquire":
		expected = "check"
	case "scope":
		expected = "reserve"
	case "settle", "cancel", "release", "renew":
		if p.receipt == "" {
			return answer, err
		}
	}
	if !slices.Contains(p.operations, expected) {
		return nil, fmt.Errorf("the hook saw %v, not %s", p.operations, expected)
	}
	return answer, err
}

func (p *player) answer(s step) (any, error) {
	ctx := context.Background()
	var one struct {
		Request
		Cost   any   `json:"cost"`
		WaitMs int64 `json:"wait_ms"`
		TTLMs  int64 `json:"ttl_ms"`
		Style  any   `json:"headers"`
	}
	if s.Call != "check_batch" && s.With != nil {
		if err := json.Unmarshal(s.With, &one); err != nil {
			return nil, err
		}
	}
	request := one.Request
	request.Cost, request.Wait = costOf(one.Cost), time.Duration(one.WaitMs)*time.Millisecond
	if one.Style == true {
		request.Headers = "ietf"
	}
	ttl := time.Duration(one.TTLMs) * time.Millisecond
	switch s.Call {
	case "check":
		return p.client.Check(ctx, request)
	case "check_batch":
		var requests []Request
		if err := json.Unmarshal(s.With, &requests); err != nil {
			return nil, err
		}
		return p.client.CheckBatch(ctx, requests)
	case "acquire":
		ctx, cancel := context.WithTimeout(ctx, time.Duration(s.DeadlineMs)*time.Millisecond)
		defer cancel()
		return p.client.Acquire(ctx, request)
	case "reserve":
		job, err := p.client.Reserve(ctx, request, ttl)
		if err != nil {
			return nil, err
		}
		p.receipt = job.Decision.Receipt
		return job.Decision, nil
	case "scope":
		return p.scope(s, request, ttl)
	}
	if p.receipt == "" {
		// What a reservation without a receipt does by itself.
		return result(OutcomeUnknown, nil)
	}
	switch s.Call {
	case "settle":
		return result(p.client.Settle(ctx, p.receipt, request.Cost))
	case "cancel":
		return result(p.client.Cancel(ctx, p.receipt))
	case "release":
		return result(p.client.Release(ctx, p.receipt))
	case "renew":
		return result(p.client.Renew(ctx, p.receipt, ttl))
	}
	return nil, fmt.Errorf("no such call: %s", s.Call)
}

func (p *player) scope(s step, request Request, ttl time.Duration) (any, error) {
	ctx, failed := context.Background(), errors.New("the work failed")
	err := p.client.WithReservation(ctx, request, ttl, func(job *Reservation) error {
		switch s.EndsBy {
		case "error":
			return failed
		case "settle":
			_, err := job.Settle(ctx, s.Settles)
			return err
		}
		return nil
	})
	var denied *DeniedError
	if errors.As(err, &denied) {
		return map[string]any{"entered": false, "reason": denied.Decision.Reason}, nil
	}
	if err != nil && !errors.Is(err, failed) {
		return nil, err
	}
	return map[string]any{"entered": true}, nil
}

func result(outcome Outcome, err error) (any, error) {
	return map[string]any{"result": string(outcome)}, err
}

func costOf(cost any) Cost {
	switch cost := cost.(type) {
	case float64:
		return Requests(int64(cost))
	case map[string]any:
		units := Cost{}
		for unit, amount := range cost {
			units[unit] = int64(amount.(float64))
		}
		return units
	}
	return nil
}

// plain turns a value into what JSON has: maps, lists, texts, numbers. Empty names are unknown, and so nil.
func plain(value any) any {
	text, err := json.Marshal(value)
	if err != nil {
		panic(err)
	}
	var made any
	if err := json.Unmarshal(text, &made); err != nil {
		panic(err)
	}
	return withoutEmpty(made)
}

func withoutEmpty(value any) any {
	switch value := value.(type) {
	case map[string]any:
		for name, item := range value {
			value[name] = withoutEmpty(item)
			if (name == "limits" || name == "unused") && item == nil {
				value[name] = []any{}
			}
		}
	case []any:
		for i, item := range value {
			value[i] = withoutEmpty(item)
		}
	case string:
		if value == "" {
			return nil
		}
	}
	return value
}

// match compares by the rules in README.md of the conformance suite.
func match(expected, actual any, where string) error {
	wrong := fmt.Errorf("%s: %v, expected %v", where, actual, expected)
	switch expected := expected.(type) {
	case []any:
		items, isList := actual.([]any)
		if !isList || len(items) != len(expected) {
			return wrong
		}
		for i, item := range expected {
			if err := match(item, items[i], fmt.Sprintf("%s[%d]", where, i)); err != nil {
				return err
			}
		}
		return nil
	case map[string]any:
		if _, has := expected["$absent"]; has {
			if actual != nil {
				return wrong
			}
			return nil
		}
		if pattern, has := expected["$matches"]; has {
			text, isText := actual.(string)
			if !isText || !regexp.MustCompile(pattern.(string)).MatchString(text) {
				return wrong
			}
			return nil
		}
		least, hasLeast := expected["$at_least"].(float64)
		most, hasMost := expected["$at_most"].(float64)
		if hasLeast || hasMost {
			number, isNumber := actual.(float64)
			if !isNumber || (hasLeast && number < least) || (hasMost && number > most) {
				return wrong
			}
			return nil
		}
		object, isObject := actual.(map[string]any)
		if !isObject {
			return wrong
		}
		for name, value := range expected {
			if err := match(value, object[name], where+"."+name); err != nil {
				return err
			}
		}
		return nil
	}
	if expected != actual {
		return wrong
	}
	return nil
}
