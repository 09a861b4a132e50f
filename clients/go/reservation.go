package spillgate

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"net/http"
	"time"
)

// Reserve charges an estimate, to be settled with the true cost within ttl: a minute if 0, at most 24 hours.
func (c *Client) Reserve(ctx context.Context, request Request, ttl time.Duration) (*Reservation, error) {
	if ttl == 0 {
		ttl = time.Minute
	}
	// The id makes it safe to repeat the call: it charges once.
	var id [16]byte
	if _, err := rand.Read(id[:]); err != nil {
		return nil, err
	}
	start := time.Now()
	body := reserveBody{request.withBoundedValues(), ttl.Milliseconds(), hex.EncodeToString(id[:])}
	var answer decided
	var decision Decision
	err := c.call(ctx, "/v1/reserve", body, &answer)
	if err == nil {
		decision = answer.decision()
	}
	if decision, err = c.concluded("reserve", start, decision, err); err != nil {
		return nil, err
	}
	return &Reservation{Decision: decision, client: c}, nil
}

// WithReservation reserves, and runs the work. If the work returns an error or panics, the reservation is cancelled. If it
// returns nil without a call to Settle or Cancel, the estimate stays charged and the permits end. A call that the server
// refuses does not count. If the reservation is denied, the work does not run, and the error is a *DeniedError.
func (c *Client) WithReservation(ctx context.Context, request Request, ttl time.Duration, work func(*Reservation) error) (err error) {
	job, err := c.Reserve(ctx, request, ttl)
	if err != nil {
		return err
	}
	if !job.Decision.Allowed {
		return &DeniedError{job.Decision}
	}
	// The end is sent although the caller may have gone.
	ending := context.WithoutCancel(ctx)
	isDone := false
	defer func() {
		if job.isEnded {
			return
		}
		if !isDone || err != nil {
			// The work's own error matters more. Without an end the estimate stays charged.
			_, _ = job.Cancel(ending)
			return
		}
		_, err = job.Release(ending)
	}()
	err = work(job)
	isDone = true
	return err
}

// A Reservation is a charged estimate.
type Reservation struct {
	// Decision has no receipt if it denies, or if OnFailure allowed it: then there is nothing to settle.
	Decision Decision

	client  *Client
	isEnded bool
}

// Settle replaces the estimate by the true cost.
func (r *Reservation) Settle(ctx context.Context, cost Cost) (Outcome, error) {
	return r.end(func(receipt string) (Outcome, error) { return r.client.Settle(ctx, receipt, cost) })
}

// Cancel refunds the estimate.
func (r *Reservation) Cancel(ctx context.Context) (Outcome, error) {
	return r.end(func(receipt string) (Outcome, error) { return r.client.Cancel(ctx, receipt) })
}

// Release ends the permits and keeps the estimate charged.
func (r *Reservation) Release(ctx context.Context) (Outcome, error) {
	return r.end(func(receipt string) (Outcome, error) { return r.client.Release(ctx, receipt) })
}

// end makes a call that ends the reservation. If the server refuses the call, the reservation is as before. A 409 means
// that it has ended in another way.
func (r *Reservation) end(call func(receipt string) (Outcome, error)) (Outcome, error) {
	hadEnded := r.isEnded
	r.isEnded = true
	if r.Decision.Receipt == "" {
		return OutcomeUnknown, nil
	}
	outcome, err := call(r.Decision.Receipt)
	var refusal *ProblemError
	if errors.As(err, &refusal) && refusal.Status != http.StatusConflict {
		r.isEnded = hadEnded
	}
	return outcome, err
}

// Renew lets it last for ttl from now.
func (r *Reservation) Renew(ctx context.Context, ttl time.Duration) (Outcome, error) {
	if r.Decision.Receipt == "" {
		return OutcomeUnknown, nil
	}
	return r.client.Renew(ctx, r.Decision.Receipt, ttl)
}
