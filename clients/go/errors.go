package spillgate

import (
	"errors"
	"fmt"
)

// Errors of calls, for errors.Is.
var (
	// ErrUnavailable matches every Err of a Decision that OnFailure made: Spillgate gave no answer to this call.
	ErrUnavailable = errors.New("spillgate: no answer")
	// ErrNotSent matches those for which the client found no connection in time. Nothing was charged.
	ErrNotSent = errors.New("spillgate: not sent")
	// ErrBreakerOpen matches those that the client did not send because the last calls failed. Nothing was charged.
	ErrBreakerOpen = errors.New("spillgate: the circuit breaker is open")
	// ErrInvalidToken is an error of the application: a token with a character other than visible ASCII. Nothing was sent.
	ErrInvalidToken = errors.New("spillgate: the token has a character that is not visible ASCII")
)

// A ProblemError is the server's refusal of a request: bad input (400), a wrong token (401), an ended id (409), or a
// reservation while it listens beyond loopback without store.key_secret_file (403). The request was not charged. The client
// itself refuses a check above 512 KiB (413).
type ProblemError struct {
	Status int    `json:"status"`
	Title  string `json:"title"`
	Detail string `json:"detail"`
	// Field is the field of the request that is wrong, if the server names one.
	Field string `json:"field"`
	// Ended is how a reservation ended under the id of another, if that is the problem.
	Ended string `json:"ended"`
}

func (e *ProblemError) Error() string {
	reason := e.Detail
	if reason == "" {
		reason = e.Title
	}
	return fmt.Sprintf("spillgate: %d: %s", e.Status, shortened(reason))
}

// A DeniedError is the denial of a reservation. Its work did not start.
type DeniedError struct{ Decision Decision }

func (e *DeniedError) Error() string { return "spillgate: denied: " + e.Decision.Reason }

// An unavailableError is the lack of an answer to one call.
type unavailableError struct {
	// kind narrows ErrUnavailable; it may be nil.
	kind  error
	why   string
	cause error
	// hasAnswered: it was Spillgate that answered, so its health is not in doubt, and the same call may do the rest.
	hasAnswered bool
	// byCaller: the caller did not wait for the answer, which says nothing about the server.
	byCaller bool
}

func (e *unavailableError) Error() string { return "spillgate: " + e.why }

func (e *unavailableError) Is(target error) bool { return target == ErrUnavailable || target == e.kind }

func (e *unavailableError) Unwrap() error { return e.cause }

func unavailable(cause error) error {
	return &unavailableError{why: shortened(cause.Error()), cause: cause}
}

func notSpillgate(why string) error {
	return &unavailableError{why: "the answer is not one of Spillgate: does the URL lead there? " + shortened(why)}
}

// shortened bounds what a server can write into the application's log.
func shortened(message string) string {
	if len(message) <= messageMax {
		return message
	}
	return message[:messageMax] + "..."
}

// isByServer reports whether Spillgate answered a call: then its health is not in doubt.
func isByServer(err error) bool {
	var problem *ProblemError
	var missing *unavailableError
	return err == nil || errors.As(err, &problem) || (errors.As(err, &missing) && missing.hasAnswered)
}

// isRetryable reports whether the same call may do what this one did not.
func isRetryable(err error) bool {
	return err != nil && errors.Is(err, ErrUnavailable)
}

// isOfApplication reports whether a call must return the error: OnFailure is about a silent server only.
func isOfApplication(err error) bool {
	return err != nil && !errors.Is(err, ErrUnavailable)
}

const messageMax = 512
