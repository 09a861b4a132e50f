package spillgate

import (
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"
)

// A healthLog writes when the server stops answering and when it answers again, which routes it refuses, and which names no
// rule uses. A flood of failures is a few lines.
type healthLog struct {
	logger  *slog.Logger
	decides OnFailure
	now     func() time.Time

	lock sync.Mutex
	// isDown: the log has the beginning of an outage and not yet its end.
	isDown bool
	downAt time.Time
	// refusedAt has the time of the last line about each counter.
	refusedAt map[string]time.Time
	// reported has the sentences about unused names that the log has.
	reported map[string]bool
}

func newHealthLog(logger *slog.Logger, decides OnFailure) *healthLog {
	return &healthLog{logger: logger, decides: decides, now: time.Now, refusedAt: map[string]time.Time{}, reported: map[string]bool{}}
}

// changed writes about an outage. A server that answers every second call must not fill the log, so an outage that begins
// within the pause is written with its first failure after the pause, if it lasts until then.
func (l *healthLog) changed(c change, err error) {
	l.lock.Lock()
	begins := c.hasFailed && !l.isDown && l.isDue(l.downAt)
	ends := c.hasAnswered && l.isDown
	if begins {
		l.isDown, l.downAt = true, l.now()
	}
	if ends {
		l.isDown = false
	}
	l.lock.Unlock()
	if begins {
		l.warn("Spillgate does not answer", err)
	}
	if ends {
		l.logger.Warn("Spillgate answers again")
	}
}

// refused writes that a request of the middleware had no decision because of an error of the application. The counter is
// named as its route; it may be empty.
func (l *healthLog) refused(counter string, err error) {
	l.lock.Lock()
	if len(l.refusedAt) >= refusedMax {
		for name, at := range l.refusedAt {
			if l.isDue(at) {
				delete(l.refusedAt, name)
			}
		}
	}
	at, isKnown := l.refusedAt[counter]
	isDue := l.isDue(at) && (isKnown || len(l.refusedAt) < refusedMax)
	if isDue {
		l.refusedAt[counter] = l.now()
	}
	l.lock.Unlock()
	if isDue {
		l.warn("Spillgate refuses a request", err, "counter", counter)
	}
}

// unused writes each sentence about a name that no rule uses once. A unit that is misspelled limits nothing, without an error.
func (l *healthLog) unused(sentences []string) {
	for _, sentence := range sentences {
		sentence = shortened(sentence)
		l.lock.Lock()
		isNew := !l.reported[sentence] && len(l.reported) < reportedMax
		if isNew {
			l.reported[sentence] = true
		}
		l.lock.Unlock()
		if isNew {
			// A message can have several lines in the default logger, an attribute cannot.
			l.logger.Warn("Spillgate reports an unused name", "sentence", sentence)
		}
	}
}

func (l *healthLog) isDue(last time.Time) bool { return last.IsZero() || l.now().Sub(last) >= logPause }

func (l *healthLog) warn(event string, err error, attributes ...any) {
	reason := strings.TrimPrefix(err.Error(), "spillgate: ")
	l.logger.Warn(fmt.Sprintf("%s (%s)", event, reason), append(attributes, "on_failure", l.decides.String())...)
}

const (
	logPause    = 10 * time.Second
	refusedMax  = 64
	reportedMax = 64
)
