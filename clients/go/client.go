// Package spillgate is a client of the Spillgate rate limiter, with middleware for net/http.
package spillgate

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"
)

// OnFailure is the decision of a client if the server does not answer.
type OnFailure int

const (
	// Allow fails open.
	Allow OnFailure = iota
	// Deny fails closed.
	Deny
)

func (o OnFailure) String() string {
	if o == Deny {
		return "deny"
	}
	return "allow"
}

// DefaultTimeout is longer than the 250 ms after which the server answers an overload, so that its answer comes first.
const DefaultTimeout = 300 * time.Millisecond

// A Client asks a Spillgate server. Make one and share it: it keeps connections open. Its zero value asks
// http://127.0.0.1:8080 and fails open.
//
// A call returns no error because the server is slow or away: OnFailure decides then. It returns a *ProblemError for a
// request that the server refuses, such as a wrong token.
type Client struct {
	// URL is where the server listens.
	URL string
	// Token returns the bearer token; none if nil.
	Token func() string
	// Timeout is the time until OnFailure decides: DefaultTimeout if 0.
	Timeout time.Duration
	// OnFailure decides if the server does not answer.
	OnFailure OnFailure
	// Observe is called after each call, for metrics.
	Observe func(Call)
	// Logger gets a line when the server ceases to answer, and when it answers again: slog.Default() if nil.
	Logger *slog.Logger
	// HTTPClient replaces the client's own, which has up to 64 calls at once, at most half of them with a Wait. The
	// client then sets no such bounds. A MaxConnsPerHost of yours makes calls wait that count as failures of the server.
	HTTPClient *http.Client

	once   sync.Once
	http   *http.Client
	places places
	health health
}

// A Call is one call, for metrics.
type Call struct {
	Operation string
	Duration  time.Duration
	Decisions []Decision
	Err       error
}

// Check decides one request.
func (c *Client) Check(ctx context.Context, request Request) (Decision, error) {
	// A caller that is late has no time to wait. The server refuses more than a minute.
	request.Wait = min(max(request.Wait, 0), 2*time.Minute)
	body := &checkBody{request, request.Wait.Milliseconds()}
	return c.decide(ctx, "check", body, request.Wait, 1)
}

// CheckBatch decides up to 1,000 requests in one call, each by itself. The decisions have the order of the requests.
func (c *Client) CheckBatch(ctx context.Context, requests []Request) ([]Decision, error) {
	start := time.Now()
	answer := decidedBatch{count: len(requests)}
	err := c.call(ctx, "/v1/check/batch", requests, &answer, 0, 1)
	decisions := make([]Decision, len(requests))
	if isProblem(err) {
		c.observe("check_batch", start, nil, err)
		return nil, err
	}
	for i := range decisions {
		if err != nil {
			decisions[i] = c.withoutServer(err)
		} else {
			decisions[i] = answer.Results[i].decision()
		}
	}
	c.observe("check_batch", start, decisions, err)
	return decisions, nil
}

// Acquire checks, and waits RetryAfter after each denial, until the request is allowed or the next wait would exceed the
// deadline of the context. It returns the last decision. If the context ends before the first one, it denies with the
// reason StoreUnavailable. For permits use Check with a Wait: their RetryAfter is the latest time at which one is free.
func (c *Client) Acquire(ctx context.Context, request Request) (Decision, error) {
	last := Decision{Reason: StoreUnavailable, Source: SourceClient, Degraded: true}
	for {
		decision, err := c.Check(ctx, request)
		if err == nil && decision.Source == SourceClient && hasEnded(ctx) {
			// OnFailure is about a silent server, not about a caller that stopped waiting.
			if last.Source == SourceClient {
				last.Err = decision.Err
			}
			return last, nil
		}
		last = decision
		if err != nil || decision.Allowed {
			return decision, err
		}
		wait, helps := decision.RetryAfter()
		// A little more than nothing, so that callers cannot spin.
		wait = max(wait, time.Millisecond)
		if deadline, has := ctx.Deadline(); !helps || (has && time.Now().Add(wait).After(deadline)) {
			return decision, nil
		}
		timer := time.NewTimer(wait)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return decision, nil
		}
	}
}

// Settle replaces a reservation's estimate by the true cost.
func (c *Client) Settle(ctx context.Context, receipt string, cost Cost) (Outcome, error) {
	if cost == nil {
		cost = Requests(1)
	}
	return c.end(ctx, "settle", map[string]any{"receipt": receipt, "cost": cost})
}

// Cancel refunds a reservation.
func (c *Client) Cancel(ctx context.Context, receipt string) (Outcome, error) {
	return c.end(ctx, "cancel", map[string]any{"receipt": receipt})
}

// Release ends the permits of a reservation or of a check. The estimate stays charged.
func (c *Client) Release(ctx context.Context, receipt string) (Outcome, error) {
	return c.end(ctx, "release", map[string]any{"receipt": receipt})
}

// Renew lets a reservation and its permits last for ttl from now.
func (c *Client) Renew(ctx context.Context, receipt string, ttl time.Duration) (Outcome, error) {
	return c.end(ctx, "renew", map[string]any{"receipt": receipt, "ttl_ms": ttl.Milliseconds()})
}

// Close closes the connections that are not in use.
func (c *Client) Close() { c.client().CloseIdleConnections() }

func (c *Client) decide(ctx context.Context, operation string, body any, wait time.Duration, tries int) (Decision, error) {
	start := time.Now()
	var answer decided
	err := c.call(ctx, "/v1/"+operation, body, &answer, wait, tries)
	if isProblem(err) {
		c.observe(operation, start, nil, err)
		return Decision{}, err
	}
	decision := answer.decision()
	if err != nil {
		decision = c.withoutServer(err)
	}
	if c.Observe != nil {
		c.observe(operation, start, []Decision{decision}, err)
	}
	return decision, nil
}

func (c *Client) end(ctx context.Context, operation string, body any) (Outcome, error) {
	start := time.Now()
	var answer ended
	err := c.call(ctx, "/v1/"+operation, body, &answer, 0, tries)
	c.observe(operation, start, nil, err)
	if isProblem(err) {
		return "", err
	}
	if err != nil {
		return Unavailable, nil
	}
	return answer.Result, nil
}

func (c *Client) observe(operation string, start time.Time, decisions []Decision, err error) {
	if c.Observe != nil {
		c.Observe(Call{operation, time.Since(start), decisions, err})
	}
}

// withoutServer decides by OnFailure.
func (c *Client) withoutServer(err error) Decision {
	decision := Decision{Allowed: c.OnFailure == Allow, Source: SourceClient, Degraded: true, Err: err}
	if !decision.Allowed {
		decision.Reason = StoreUnavailable
	}
	return decision
}

// call has several tries within the time-out, for calls that change nothing when repeated. The wait adds to the time-out.
func (c *Client) call(ctx context.Context, path string, body any, answer answer, wait time.Duration, tries int) error {
	until := time.Now().Add(wait)
	caller := ctx
	ctx, cancel := context.WithTimeout(ctx, c.timeout()+wait)
	defer cancel()
	for {
		tries--
		if err := c.health.check(); err != nil {
			return err
		}
		err := c.send(ctx, path, body, answer, until)
		switch {
		case err == nil:
			c.health.succeeded(c.logger())
			return nil
		case isProblem(err):
			c.health.refused()
			return err
		case caller.Err() != nil:
			// The caller went away: no sign of the server's health.
			return err
		case isRetryable(err):
			c.health.refused()
		case isNoPlace(err):
			// Nothing was sent: no sign of the server's health.
		default:
			c.health.failed(c.logger(), err, c.OnFailure)
		}
		if tries <= 0 {
			return err
		}
		timer := time.NewTimer(pause)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return err
		}
	}
}

// send takes a place and posts. A check with a Wait first takes one of the places for waits. The time until it has one is
// part of its Wait, so the server has its whole time-out to answer.
func (c *Client) send(ctx context.Context, path string, body any, answer answer, until time.Time) error {
	client := c.client()
	check, waits := body.(*checkBody)
	waits = waits && check.Wait > 0
	if waits {
		leave, err := c.places.takeForWait(ctx, until)
		if err != nil {
			return err
		}
		defer leave()
	}
	leave, err := c.places.take(ctx)
	if err != nil {
		return err
	}
	defer leave()
	if waits {
		check.WaitMs = max(0, time.Until(until).Round(time.Millisecond).Milliseconds())
	}
	message, err := json.Marshal(body)
	if err != nil {
		return &unavailableError{err.Error(), err}
	}
	return c.post(ctx, client, path, message, answer)
}

func (c *Client) post(ctx context.Context, client *http.Client, path string, message []byte, answer answer) error {
	url := c.URL
	if url == "" {
		url = "http://127.0.0.1:8080"
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, strings.TrimRight(url, "/")+path, bytes.NewReader(message))
	if err != nil {
		return &unavailableError{err.Error(), err}
	}
	request.Header["Content-Type"] = contentType
	if c.Token != nil {
		request.Header.Set("Authorization", "Bearer "+c.Token())
	}
	response, err := client.Do(request)
	if err != nil {
		return unavailable(err)
	}
	defer response.Body.Close()
	text, err := io.ReadAll(io.LimitReader(response.Body, answerMax))
	if err != nil {
		return unavailable(err)
	}
	if response.StatusCode == http.StatusOK {
		if err := json.Unmarshal(text, answer); err != nil {
			return &unavailableError{"the answer is not one of Spillgate: does the URL lead there? " + err.Error(), err}
		}
		if !answer.isComplete() {
			return errNotSpillgate
		}
		return nil
	}
	problem := &serverProblem{}
	if json.Unmarshal(text, problem) != nil {
		problem = &serverProblem{ProblemError: ProblemError{Title: "no reason given"}}
	}
	problem.Status = response.StatusCode
	if isRefusal := problem.Status >= 400 && problem.Status < 500 && problem.Status != http.StatusRequestTimeout; isRefusal {
		return &problem.ProblemError
	}
	silence := unavailableError{fmt.Sprintf("the server answered %d: %s", problem.Status, problem.Detail), nil}
	// A load balancer also answers 503, but with neither field: then the server is silent.
	if problem.Status == http.StatusServiceUnavailable && problem.Reason == Overloaded {
		return json.Unmarshal(overloaded, answer)
	}
	if problem.Status == http.StatusServiceUnavailable && problem.Retryable {
		return &retryableError{silence}
	}
	return &silence
}

func (c *Client) timeout() time.Duration {
	if c.Timeout == 0 {
		return DefaultTimeout
	}
	return c.Timeout
}

func (c *Client) logger() *slog.Logger {
	if c.Logger == nil {
		return slog.Default()
	}
	return c.Logger
}

func (c *Client) client() *http.Client {
	c.once.Do(func() {
		c.http = c.HTTPClient
		if c.http != nil {
			return
		}
		c.places = newPlaces(connections)
		dialer := &net.Dialer{Timeout: dialing, KeepAlive: 30 * time.Second}
		c.http = &http.Client{
			Transport: &http.Transport{
				DialContext:         dialer.DialContext,
				TLSHandshakeTimeout: dialing,
				MaxIdleConns:        connections,
				MaxIdleConnsPerHost: connections,
				IdleConnTimeout:     idle,
				DisableCompression:  true,
			},
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		}
	})
	return c.http
}

// A checkBody is a check as the server reads it.
type checkBody struct {
	Request
	WaitMs int64 `json:"wait_ms,omitempty"`
}

// An answer is JSON of the server; without its main fields it is not one of Spillgate.
type answer interface{ isComplete() bool }

// A decided is a Decision as the server writes it: one without "allowed" is none.
type decided struct {
	Decision
	// It hides the field of the Decision, in which a missing value would be a denial.
	Allowed *bool `json:"allowed"`
}

func (d *decided) isComplete() bool { return d.Allowed != nil }

func (d *decided) decision() Decision {
	if d.Allowed != nil {
		d.Decision.Allowed = *d.Allowed
	}
	return d.Decision
}

// A decidedBatch is the answer to a batch of count checks.
type decidedBatch struct {
	Results []decided
	count   int
}

func (b *decidedBatch) isComplete() bool {
	for i := range b.Results {
		if !b.Results[i].isComplete() {
			return false
		}
	}
	return len(b.Results) == b.count
}

// An ended is the answer to a call on a receipt.
type ended struct{ Result Outcome }

func (e *ended) isComplete() bool { return e.Result != "" }

// A serverProblem is a ProblemError with the fields that a 503 of Spillgate has.
type serverProblem struct {
	ProblemError
	Reason    string `json:"reason"`
	Retryable bool   `json:"retryable"`
}

func isProblem(err error) bool {
	var problem *ProblemError
	return errors.As(err, &problem)
}

func isRetryable(err error) bool {
	var retryable *retryableError
	return errors.As(err, &retryable)
}

func isNoPlace(err error) bool {
	var noPlace *noPlaceError
	return errors.As(err, &noPlace)
}

// hasEnded reports whether a context has ended. A dialer gives up at the deadline, perhaps a moment before the context.
func hasEnded(ctx context.Context) bool {
	deadline, has := ctx.Deadline()
	return ctx.Err() != nil || (has && !time.Now().Before(deadline))
}

func unavailable(err error) error {
	if errors.Is(err, context.DeadlineExceeded) {
		return &unavailableError{"the server did not answer in time", err}
	}
	return &unavailableError{err.Error(), err}
}

var (
	errNotSpillgate = &unavailableError{"the answer is not one of Spillgate: does the URL lead there?", nil}
	contentType     = []string{"application/json"}
	// overloaded is the decision over a reservation for whose record the store has no room.
	overloaded = []byte(`{"allowed":false,"reason":"overloaded","source":"outage-policy","degraded":true}`)
)

const (
	connections = 64
	// The server closes a connection that is idle for 75 s.
	idle = 60 * time.Second
	// Dialling goes on when its call has ended, so it needs a bound of its own.
	dialing   = 5 * time.Second
	answerMax = 16 << 20
	tries     = 3
	pause     = 20 * time.Millisecond
)
