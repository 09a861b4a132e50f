package spillgate

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"time"
)

// checkAtOnce sends a check with the next batch.
func (c *Client) checkAtOnce(ctx context.Context, request Request) (Decision, error) {
	body, token, err := c.encodeCheck(request)
	if err != nil {
		return Decision{}, err
	}
	one := &check{turn: turn{ready: make(chan struct{})}, body: body, token: token}
	if err := c.dispatcher.decide(ctx, one); err != nil {
		return Decision{}, err
	}
	return one.answer.decision(), nil
}

// checkWithWait lets the server wait for room. The time until the call may leave is part of its wait; once it is over, the
// request needs no wait any more.
func (c *Client) checkWithWait(ctx context.Context, request Request, until time.Time) (Decision, error) {
	if c.dispatcher.isOpen() {
		// A check that the server may hold would not show soon that it is back.
		decision, err := c.checkAtOnce(ctx, request)
		if _, helps := decision.RetryAfter(); err != nil || decision.Allowed || !helps {
			return decision, err
		}
	}
	token, err := bearer(c.options.TokenFunc())
	if err != nil {
		return Decision{}, err
	}
	f, err := c.dispatcher.enter(ctx, until)
	left := time.Until(until).Round(time.Millisecond).Milliseconds()
	if err == errWaitOver || (err == nil && left <= 0) {
		if err == nil {
			c.dispatcher.leave(f, abandoned)
		}
		return c.checkAtOnce(ctx, request)
	}
	if err != nil {
		return Decision{}, err
	}
	var answer decided
	if err := c.fly(ctx, f, "/v1/check", token, checkBody{request.withBoundedValues(), left}, &answer, 1); err != nil {
		return Decision{}, err
	}
	return answer.decision(), nil
}

// checkAll sends the requests in batches of their own. Its error is of the application, or the last one of the server.
func (c *Client) checkAll(ctx context.Context, requests []Request) ([]Decision, error) {
	decisions := make([]Decision, len(requests))
	var first, last error
	for start := 0; start < len(requests); {
		batch, err := c.encodeBatch(requests[start:], start)
		if err != nil {
			return nil, err
		}
		err = c.sendOwnBatch(ctx, batch)
		if isOfApplication(err) {
			return nil, err
		}
		for i, item := range batch {
			switch {
			case err != nil:
				decisions[start+i], last = c.withoutServer(err), err
			case item.answer.Error != nil:
				first = firstOf(first, ofItem(item.answer.Error.err(), start+i))
			default:
				decisions[start+i] = item.answer.decision()
			}
		}
		start += len(batch)
	}
	if first != nil {
		return nil, first
	}
	return decisions, last
}

// encodeBatch takes as many of the requests as one batch may have.
func (c *Client) encodeBatch(requests []Request, offset int) ([]*check, error) {
	var batch []*check
	size := len("[]")
	for i, request := range requests[:min(len(requests), batchMax)] {
		body, token, err := c.encodeCheck(request)
		var refusal *ProblemError
		if errors.As(err, &refusal) {
			return nil, ofItem(refusal, offset+i)
		}
		if err != nil {
			return nil, err
		}
		if size += len(body) + len(","); size > batchBytesMax && i > 0 {
			break
		}
		batch = append(batch, &check{body: body, token: token})
	}
	return batch, nil
}

func (c *Client) sendOwnBatch(ctx context.Context, batch []*check) error {
	f, err := c.dispatcher.enter(ctx, time.Time{})
	if err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, func() { f.cancel(callerEnded(ctx)) })
	defer stop()
	return c.postBatch(f, batch)
}

// sendBatch sends the checks of several callers.
func (c *Client) sendBatch(f *flight, batch []*check) {
	err := c.postBatch(f, batch)
	for _, one := range batch {
		one.err = err
		if err == nil && one.answer.Error != nil {
			one.err = one.answer.Error.err()
		}
		close(one.ready)
	}
}

// postBatch makes one call for all, and reads their answers.
func (c *Client) postBatch(f *flight, batch []*check) error {
	bodies := make([][]byte, len(batch))
	for i, one := range batch {
		bodies[i] = one.body
	}
	body := bytes.Join([][]byte{[]byte("["), bytes.Join(bodies, []byte(",")), []byte("]")}, nil)
	// The newest token, since it may have changed.
	token := batch[len(batch)-1].token
	answer := decidedBatch{count: len(batch)}
	err := c.exchange(f, exchange{"/v1/check/batch", token, body, len(batch)}, &answer)
	c.left(f, err)
	for i := range batch {
		if err == nil {
			batch[i].answer = answer.Results[i]
			batch[i].answer.Unused = answer.Unused
		}
	}
	return err
}

// fly makes a call that is no batch. It tries several times within the time-out, for calls that change nothing when
// repeated.
func (c *Client) fly(ctx context.Context, f *flight, path, token string, body any, answer answer, tries int) error {
	stop := context.AfterFunc(ctx, func() { f.cancel(callerEnded(ctx)) })
	defer stop()
	text, err := encode(body)
	if err != nil {
		c.dispatcher.leave(f, abandoned)
		return err
	}
	for {
		tries--
		err = c.exchange(f, exchange{path, token, text, 1}, answer)
		if tries <= 0 || !isRetryable(err) {
			break
		}
		timer := time.NewTimer(pause)
		select {
		case <-timer.C:
			continue
		case <-f.Done():
			timer.Stop()
		}
		break
	}
	c.left(f, err)
	return err
}

// left ends a call, and logs what it changed.
func (c *Client) left(f *flight, err error) {
	e := failed
	var missing *unavailableError
	switch {
	case isByServer(err):
		e = answered
	case errors.As(err, &missing) && missing.byCaller:
		e = abandoned
	}
	changed := c.dispatcher.leave(f, e)
	if changed.opens {
		// They may be dead, and the call that tries the server must not have one of these.
		c.http.CloseIdleConnections()
	}
	c.log.changed(changed, err)
}

func (c *Client) call(ctx context.Context, path string, body any, answer answer) error {
	token, err := bearer(c.options.TokenFunc())
	if err != nil {
		return err
	}
	f, err := c.dispatcher.enter(ctx, time.Time{})
	if err != nil {
		return err
	}
	return c.fly(ctx, f, path, token, body, answer, tries)
}

func (c *Client) encodeCheck(request Request) (body []byte, token string, err error) {
	if token, err = bearer(c.options.TokenFunc()); err != nil {
		return nil, "", err
	}
	body, err = encode(request.withBoundedValues())
	return body, token, err
}

func ofItem(refusal *ProblemError, index int) *ProblemError {
	numbered := *refusal
	numbered.Field = fmt.Sprintf("[%d]", index)
	if refusal.Field != "" {
		numbered.Field += "." + refusal.Field
	}
	return &numbered
}

func firstOf(first, next error) error {
	if first != nil {
		return first
	}
	return next
}

const (
	tries = 3
	pause = 20 * time.Millisecond
)
