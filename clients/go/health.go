package spillgate

import (
	"log/slog"
	"sync"
	"time"
)

// A health stops calling a server that does not answer: after three failures in a row one call a second tries again.
type health struct {
	lock      sync.Mutex
	failures  int
	retryAt   time.Time
	isRefused bool
}

func (h *health) check() error {
	h.lock.Lock()
	defer h.lock.Unlock()
	if h.failures < tripsAfter {
		return nil
	}
	now := time.Now()
	if now.Before(h.retryAt) {
		return errResting
	}
	h.retryAt = now.Add(retryEvery)
	return nil
}

func (h *health) succeeded(logger *slog.Logger) {
	h.lock.Lock()
	wasWell := h.failures == 0 && !h.isRefused
	h.failures, h.isRefused = 0, false
	h.lock.Unlock()
	if !wasWell {
		logger.Info("Spillgate answers again")
	}
}

func (h *health) refused() {
	h.lock.Lock()
	h.failures = 0
	h.lock.Unlock()
}

// isFirstRefusal reports whether a middleware should log a refusal: the first since the last answer.
func (h *health) isFirstRefusal() bool {
	h.lock.Lock()
	defer h.lock.Unlock()
	isFirst := !h.isRefused
	h.isRefused = true
	return isFirst
}

func (h *health) failed(logger *slog.Logger, err error, decides OnFailure) {
	h.lock.Lock()
	h.failures++
	failures := h.failures
	if failures == tripsAfter {
		h.retryAt = time.Now().Add(retryEvery)
	}
	h.lock.Unlock()
	if failures == 1 {
		logger.Warn("Spillgate does not answer", "error", err, "on_failure", decides.String())
	}
}

var errResting = &unavailableError{"the server did not answer the last calls; one call a second tries again", nil}

const (
	tripsAfter = 3
	retryEvery = time.Second
)
