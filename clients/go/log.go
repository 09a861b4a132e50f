package spillgate

import (
	"log/slog"
	"sync"
	"time"
)

// A healthLog writes when the server ceases to answer and when it answers again. A flood of failures is a few lines.
type healthLog struct {
	logger  *slog.Logger
	decides OnFailure

	lock      sync.Mutex
	isDown    bool
	refusedAt time.Time
}

func (l *healthLog) changed(c change, err error) {
	if !c.hasFailed && !c.recovers {
		return
	}
	l.lock.Lock()
	wasDown := l.isDown
	l.isDown = (wasDown || c.hasFailed) && !c.recovers
	isDown := l.isDown
	l.lock.Unlock()
	if isDown && !wasDown {
		l.logger.Warn("Spillgate does not answer", "error", err, "on_failure", l.decides.String())
	}
	if wasDown && !isDown {
		l.logger.Info("Spillgate answers again")
	}
}

// refused writes that a request of the middleware had no decision because of an error of the application.
func (l *healthLog) refused(err error) {
	l.lock.Lock()
	now := time.Now()
	isDue := l.refusedAt.IsZero() || now.Sub(l.refusedAt) >= refusalsEvery
	if isDue {
		l.refusedAt = now
	}
	l.lock.Unlock()
	if isDue {
		l.logger.Warn("Spillgate refuses a request", "error", err, "on_failure", l.decides.String())
	}
}

const refusalsEvery = 10 * time.Second
