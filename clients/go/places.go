package spillgate

import (
	"context"
	"fmt"
	"time"
)

// A places bounds the calls at once, and those of them with a Wait: the server holds these, and checks need the others.
// Its zero value has no bounds.
type places struct {
	all   chan struct{}
	waits chan struct{}
}

func newPlaces(size int) places {
	return places{make(chan struct{}, size), make(chan struct{}, max(1, size/2))}
}

// take returns how to leave the place. It fails when the context ends.
func (p places) take(ctx context.Context) (func(), error) {
	if err := enter(ctx, p.all); err != nil {
		return nil, noPlace(fmt.Sprintf("all %d connections are in use by other calls; set HTTPClient to use more", cap(p.all)), err)
	}
	return func() { leave(p.all) }, nil
}

// takeForWait takes a place for calls with a Wait. It fails when the context ends, or at the given time.
func (p places) takeForWait(ctx context.Context, until time.Time) (func(), error) {
	ctx, cancel := context.WithDeadline(ctx, until)
	defer cancel()
	if err := enter(ctx, p.waits); err != nil {
		why := fmt.Sprintf("calls with a Wait use %d of %d connections, and all are in use; set HTTPClient to use more", cap(p.waits), cap(p.all))
		return nil, noPlace(why, err)
	}
	return func() { leave(p.waits) }, nil
}

func enter(ctx context.Context, places chan struct{}) error {
	if places == nil {
		return nil
	}
	// A free place is taken also by a call whose time is over: then the reason is not a lack of places.
	select {
	case places <- struct{}{}:
		return nil
	default:
	}
	select {
	case places <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func leave(places chan struct{}) {
	if places != nil {
		<-places
	}
}

func noPlace(why string, cause error) error {
	return &noPlaceError{unavailableError{why, cause}}
}
