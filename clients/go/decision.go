package spillgate

import (
	"math"
	"time"
)

// Why a decision denies.
const (
	ReasonLimitExceeded    = "limit-exceeded"
	ReasonCostExceedsLimit = "cost-exceeds-limit"
	ReasonBlocked          = "blocked"
	ReasonStoreUnavailable = "store-unavailable"
	ReasonOverloaded       = "overloaded"
)

// SourceClient is the source of a decision that the client made, because the server did not answer.
const SourceClient = "client"

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
	// Unused has a sentence for each attribute or unit that no rule uses, such as a misspelled one. Checks that left in one
	// batch share it.
	Unused []string `json:"unused"`

	// Err is why the server's answer is missing, if Source is SourceClient.
	Err error `json:"-"`
}

// RetryAfter returns the time until the same request can be allowed, and whether a wait helps.
func (d Decision) RetryAfter() (time.Duration, bool) {
	if d.RetryAfterMs == nil {
		return 0, false
	}
	// A duration has no room for every number of milliseconds.
	return time.Duration(min(max(*d.RetryAfterMs, 0), retryAfterMax)) * time.Millisecond, true
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

// The outcomes of a call on a receipt.
const (
	OutcomeDone     Outcome = "done"
	OutcomeRepeated Outcome = "repeated"
	OutcomeExpired  Outcome = "expired"
	OutcomeUnknown  Outcome = "unknown"
	// OutcomeUnavailable: the server did not answer. The estimate stays charged.
	OutcomeUnavailable Outcome = "unavailable"
)

const retryAfterMax = math.MaxInt64 / int64(time.Millisecond)
