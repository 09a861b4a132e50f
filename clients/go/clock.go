package spillgate

import (
	"runtime"
	"time"
)

// A clock counts the time in which this process was able to read answers, in slices.
//
// Under load a deadline would fire although the answer is in the socket, because the runtime runs due timers ahead of the
// goroutines that read. So after each slice the clock yields, which puts it behind the goroutines that are ready to read,
// and it counts the slice with its own length however late it ended. It runs only while calls are under way.
type clock struct {
	slice time.Duration
	// now is the number of slices that have ended.
	now   int64
	timer *time.Timer
	// isRunning: the timer is set, or its function runs.
	isRunning bool
}

func newClock(timeout time.Duration) clock {
	return clock{slice: min(sliceMax, max(timeout/slicesPerTimeout, sliceMin))}
}

// start lets the clock run. It calls ended after each slice, until ended returns false.
func (c *clock) start(ended func() bool) {
	if c.isRunning {
		return
	}
	c.isRunning = true
	if c.timer != nil {
		c.timer.Reset(c.slice)
		return
	}
	c.timer = time.AfterFunc(c.slice, func() {
		runtime.Gosched()
		if ended() {
			c.timer.Reset(c.slice)
		}
	})
}

// after returns the slice in which the duration is over: the slice under way began before it, so it does not count.
func (c *clock) after(duration time.Duration) int64 {
	return c.now + 1 + c.slices(duration)
}

func (c *clock) slices(duration time.Duration) int64 {
	return int64((duration + c.slice - 1) / c.slice)
}

const (
	sliceMax         = 25 * time.Millisecond
	sliceMin         = time.Millisecond
	slicesPerTimeout = 20
)
