package spillgate

import (
	"fmt"
	"time"
)

// Why a decision denies.
const (
	LimitExceeded    = "limit-exceeded"
	CostExceedsLimit = "cost-exceeds-limit"
	Blocked          = "blocked"
	StoreUnavailable = "store-unavailable"
	Overloaded       = "overloaded"
)

// SourceClient is the source of a decision that the client made, because the server did not answer.
const SourceClient = "client"

// A Cost is an amount for each unit. Nil is one request; an amount of 0 only looks.
type Cost map[string]int64

// Requests is the cost of n requests.
func Requests(n int64) Cost { return Cost{"requests": n} }

// A Request is one check: attributes that the rules match and limit by, or a key that brings its own limit.
type Request struct {
	Domain     string            `json:"domain,omitempty"`
	Attributes map[string]string `json:"attributes,omitempty"`
	Cost       Cost              `json:"cost,omitempty"`
	Key        string            `json:"key,omitempty"`
	Limit      *InlineLimit      `json:"limit,omitempty"`

	// Wait is how long to wait for room, at most a minute. It adds to the time-out. The server waits, after the client has
	// a place for the call: at most half of the calls at once may have a Wait.
	Wait time.Duration `json:"-"`
	// Headers is the style of the header fields in the answer, such as "ietf"; none if empty.
	Headers string `json:"headers,omitempty"`
}

// An InlineLimit comes with a request.
type InlineLimit struct {
	Quota     string `json:"quota"`
	Burst     int64  `json:"burst,omitempty"`
	Algorithm string `json:"algorithm,omitempty"`
	TimeZone  string `json:"time_zone,omitempty"`
	MaxHold   string `json:"max_hold,omitempty"`
}

// A Limit is one limit of one rule in an answer. Unknown numbers are nil, unknown names empty.
type Limit struct {
	Rule         string `json:"rule"`
	Limit        string `json:"limit"`
	Unit         string `json:"unit"`
	Capacity     *int64 `json:"capacity"`
	Remaining    *int64 `json:"remaining"`
	RetryAfterMs *int64 `json:"retry_after_ms"`
	ResetAfterMs *int64 `json:"reset_after_ms"`
	Allowed      bool   `json:"allowed"`
	Reason       string `json:"reason"`
	Source       string `json:"source"`
	Shadow       bool   `json:"shadow"`
}

// A Denial is the response that a rule sets for its denials. A decision has it if the rule sets one and the request asks
// for Headers; the header fields of the decision belong to it.
type Denial struct {
	Status int    `json:"status"`
	Body   string `json:"body"`
}

// A Decision is one answer. Unknown numbers are nil, unknown names empty.
type Decision struct {
	Allowed      bool              `json:"allowed"`
	Reason       string            `json:"reason"`
	Rule         string            `json:"rule"`
	Limit        string            `json:"limit"`
	Capacity     *int64            `json:"capacity"`
	Remaining    *int64            `json:"remaining"`
	RetryAfterMs *int64            `json:"retry_after_ms"`
	ResetAfterMs *int64            `json:"reset_after_ms"`
	Source       string            `json:"source"`
	Degraded     bool              `json:"degraded"`
	Matched      bool              `json:"matched"`
	Receipt      string            `json:"receipt"`
	Headers      map[string]string `json:"headers"`
	Denial       *Denial           `json:"denial"`
	Limits       []Limit           `json:"limits"`

	// Err is why the server's answer is missing, if Source is SourceClient.
	Err error `json:"-"`
}

// RetryAfter returns the time until the same request can be allowed, and whether a wait helps.
func (d Decision) RetryAfter() (time.Duration, bool) {
	if d.RetryAfterMs == nil {
		return 0, false
	}
	return time.Duration(*d.RetryAfterMs) * time.Millisecond, true
}

// ViolatedPolicies returns the limits that deny: the rule's name, or rule/limit where the rule has several.
func (d Decision) ViolatedPolicies() []string {
	ofRule := map[string]int{}
	for _, limit := range d.Limits {
		ofRule[limit.Rule]++
	}
	names := []string{}
	for _, limit := range d.Limits {
		if limit.Allowed || limit.Shadow || limit.Rule == "" {
			continue
		}
		if name := limit.Rule; ofRule[name] == 1 {
			names = append(names, name)
		} else {
			names = append(names, name+"/"+limit.Limit)
		}
	}
	return names
}

// An Outcome is how a call on a receipt ended.
type Outcome string

const (
	Done     Outcome = "done"
	Repeated Outcome = "repeated"
	Expired  Outcome = "expired"
	Unknown  Outcome = "unknown"
	// Unavailable: the server did not answer. The estimate stays charged.
	Unavailable Outcome = "unavailable"
)

// A ProblemError is the server's refusal of the request itself: bad input (400), a wrong token (401), an ended id
// (409). Nothing was charged.
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
	return fmt.Sprintf("spillgate: %d: %s", e.Status, reason)
}

// A DeniedError is the denial of a reservation. Its work did not start.
type DeniedError struct{ Decision Decision }

func (e *DeniedError) Error() string { return "spillgate: denied: " + e.Decision.Reason }

// An unavailableError is the lack of an answer.
type unavailableError struct {
	why   string
	cause error
}

func (e *unavailableError) Error() string { return "spillgate: " + e.why }
func (e *unavailableError) Unwrap() error { return e.cause }

// A noPlaceError is the lack of a place for a call, so nothing was sent.
type noPlaceError struct{ unavailableError }

// A retryableError is the server's answer that it did a call in part or not at all; the same call does the rest.
type retryableError struct{ unavailableError }
