// Package spillgate is a client of the Spillgate rate limiter, with middleware for net/http.
package spillgate

import (
	"context"
	"errors"
	"net/http"
	"time"
)

// A Client asks a Spillgate server. Make one with New and share it: it keeps connections open, and sends checks that are
// made at the same time together.
//
// A call returns no error because the server is slow or down: OnFailure decides then. It returns a *ProblemError for a
// request that the server refuses, such as a wrong token, and ErrInvalidToken for a token that cannot be sent.
type Client struct {
	options    Options
	url        string
	http       *http.Client
	dispatcher *dispatcher
	log        *healthLog
}

// A Call is one call, for metrics.
type Call struct {
	Operation string
	Duration  time.Duration
	Decisions []Decision
	Err       error
}

// New makes a client. Its error names an option that is not valid.
func New(options Options) (*Client, error) {
	options, err := options.withDefaults()
	if err != nil {
		return nil, err
	}
	c := &Client{options: options, url: options.URL, http: newHTTPClient(options.Transport)}
	c.log = newHealthLog(options.Logger, options.OnFailure)
	c.dispatcher = newDispatcher(options.Timeout, c.sendBatch)
	return c, nil
}

// Check decides one request.
func (c *Client) Check(ctx context.Context, request Request) (Decision, error) {
	start := time.Now()
	var decision Decision
	var err error
	// A caller that is late has no time to wait. The server refuses more than a minute.
	if wait := min(request.Wait, 2*time.Minute); wait > 0 {
		decision, err = c.checkWithWait(ctx, request, start.Add(wait))
	} else {
		decision, err = c.checkAtOnce(ctx, request)
	}
	return c.concluded("check", start, decision, err)
}

// CheckBatch decides requests by as few calls as possible, each by itself. The decisions have the order of the requests. If
// the server refuses some of them, it decides the others, and the error is that of the first, with its index in Field.
func (c *Client) CheckBatch(ctx context.Context, requests []Request) ([]Decision, error) {
	start := time.Now()
	decisions, err := c.checkAll(ctx, requests)
	c.observe("check_batch", start, decisions, err)
	if isOfApplication(err) {
		return nil, err
	}
	return decisions, nil
}

// Acquire checks, and waits RetryAfter after each denial, until the request is allowed or the next wait would exceed the
// deadline of the context. It returns the last decision. If the context ends before the first one, it denies with the
// reason ReasonStoreUnavailable. For permits use Check with a Wait: their RetryAfter is the latest time at which one is free.
func (c *Client) Acquire(ctx context.Context, request Request) (Decision, error) {
	last := Decision{Reason: ReasonStoreUnavailable, Source: SourceClient, Degraded: true}
	for {
		decision, err := c.Check(ctx, request)
		if err == nil && decision.Source == SourceClient && ctx.Err() != nil {
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
func (c *Client) Close() { c.http.CloseIdleConnections() }

func (c *Client) end(ctx context.Context, operation string, body any) (Outcome, error) {
	start := time.Now()
	var answer ended
	err := c.call(ctx, "/v1/"+operation, body, &answer)
	c.observe(operation, start, nil, err)
	if isOfApplication(err) {
		return "", err
	}
	if err != nil {
		return OutcomeUnavailable, nil
	}
	return answer.Result, nil
}

// concluded lets OnFailure decide if there is no answer.
func (c *Client) concluded(operation string, start time.Time, decision Decision, err error) (Decision, error) {
	if isOfApplication(err) {
		c.observe(operation, start, nil, err)
		return Decision{}, err
	}
	if err != nil {
		decision = c.withoutServer(err)
	}
	if c.options.Observe != nil {
		c.observe(operation, start, []Decision{decision}, err)
	}
	return decision, nil
}

// withoutServer decides by OnFailure. But a flood of calls is not an outage, and must not switch the limits off.
func (c *Client) withoutServer(err error) Decision {
	if errors.Is(err, errQueueFull) {
		return Decision{Reason: ReasonOverloaded, Source: SourceClient, Degraded: true, Err: err}
	}
	decision := Decision{Allowed: c.options.OnFailure == OnFailureAllow, Source: SourceClient, Degraded: true, Err: err}
	if !decision.Allowed {
		decision.Reason = ReasonStoreUnavailable
	}
	return decision
}

func (c *Client) observe(operation string, start time.Time, decisions []Decision, err error) {
	if c.options.Observe != nil {
		c.options.Observe(Call{operation, time.Since(start), decisions, err})
	}
}
