package spillgate

import "time"

// A breaker stops calling a server that does not answer. Three failures in a row open it; then one call at a time tries the
// server again, at most ten in a second. Its dispatcher has the lock.
type breaker struct {
	failures int
	// answers counts the answers of Spillgate.
	answers  uint64
	isTrying bool
	tryAt    time.Time
}

func (b *breaker) isOpen() bool { return b.failures >= opensAfter }

// try reports whether a call may try the server again.
func (b *breaker) try() bool {
	now := time.Now()
	if b.isTrying || now.Before(b.tryAt) {
		return false
	}
	b.isTrying, b.tryAt = true, now.Add(tryEvery)
	return true
}

func (b *breaker) succeeded() {
	b.answers++
	b.failures = 0
}

// failed counts a failure, unless the server answered another call meanwhile: then the server is there.
func (b *breaker) failed(answersBefore uint64) {
	if b.answers != answersBefore {
		return
	}
	b.failures++
	if b.failures == opensAfter {
		b.tryAt = time.Now().Add(tryEvery)
	}
}

const (
	opensAfter = 3
	tryEvery   = 100 * time.Millisecond
)
