package spillgate

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"unicode/utf8"
)

// An answer is JSON of the server. Nothing in it is trusted: without its main fields it is not one of Spillgate.
type answer interface {
	isComplete() bool
	// unused returns the sentences about names that no rule uses.
	unused() []string
}

// A decided is a Decision as the server writes it.
type decided struct {
	Decision
	// These hide fields of the Decision: a missing boolean would be a denial, and the others need a check.
	Allowed *bool           `json:"allowed"`
	Limits  limitList       `json:"limits"`
	Denial  json.RawMessage `json:"denial"`
	Unused  unusedList      `json:"unused"`
	// Error is in place of a decision, for an item of a batch.
	Error *problem `json:"error"`
}

func (d *decided) isComplete() bool { return d.Allowed != nil }

func (d *decided) unused() []string { return d.Unused }

func (d *decided) decision() Decision {
	decision := d.Decision
	decision.Allowed = *d.Allowed
	decision.Limits = d.Limits
	decision.Denial = denialOf(d.Denial)
	// The checks of a batch have one list, and each caller gets its own.
	decision.Unused = slices.Clone(d.Unused)
	for name, value := range decision.Headers {
		if !isFieldName(name) || !isFieldValue(value) {
			delete(decision.Headers, name)
		}
	}
	return decision
}

// denialOf returns nil for a response that cannot be sent.
func denialOf(text json.RawMessage) *Denial {
	var denial struct {
		Status int
		Body   *string
	}
	if json.Unmarshal(text, &denial) != nil || denial.Body == nil || denial.Status < 200 || denial.Status > 599 {
		return nil
	}
	return &Denial{denial.Status, *denial.Body}
}

// A limitList is bounded before it is read: a few bytes of JSON would make a Limit that is much larger.
type limitList []Limit

func (l *limitList) UnmarshalJSON(text []byte) error {
	if bytes.Count(text, []byte("{")) > bracesMax {
		return fmt.Errorf("it has too many limits")
	}
	var limits []*Limit
	if err := json.Unmarshal(text, &limits); err != nil {
		return err
	}
	for _, limit := range limits {
		if limit == nil {
			return fmt.Errorf("a limit is null")
		}
		*l = append(*l, *limit)
	}
	return nil
}

// An unusedList only informs, so with a wrong type or too many sentences it counts as absent.
type unusedList []string

func (u *unusedList) UnmarshalJSON(text []byte) error {
	*u = nil
	// It is read piece by piece, since a list of empty strings would become much larger than its JSON.
	decoder := json.NewDecoder(bytes.NewReader(text))
	if start, _ := decoder.Token(); start != json.Delim('[') {
		return nil
	}
	var sentences []string
	for decoder.More() {
		token, _ := decoder.Token()
		sentence, isString := token.(string)
		if !isString || len(sentences) == unusedMax {
			return nil
		}
		sentences = append(sentences, sentence)
	}
	*u = sentences
	return nil
}

// A decidedBatch is the answer to a batch of count checks.
type decidedBatch struct {
	Results []decided
	Unused  unusedList
	count   int
}

func (b *decidedBatch) unused() []string { return b.Unused }

func (b *decidedBatch) isComplete() bool {
	for i := range b.Results {
		item := &b.Results[i]
		if !item.isComplete() && !item.Error.isOfSpillgate() {
			return false
		}
	}
	return len(b.Results) == b.count
}

// An ended is the answer to a call on a receipt.
type ended struct {
	Result Outcome
	Unused unusedList
}

func (e *ended) isComplete() bool { return e.Result != "" }

func (e *ended) unused() []string { return e.Unused }

// A problem is a ProblemError with the fields that a 503 of Spillgate has.
type problem struct {
	ProblemError
	Title     *string `json:"title"`
	Reason    string  `json:"reason"`
	Retryable bool    `json:"retryable"`
}

func (p *problem) isOfSpillgate() bool {
	return p != nil && p.Title != nil && p.Status >= 400 && p.Status <= 599
}

func (p *problem) err() *ProblemError {
	refusal := p.ProblemError
	refusal.Title = *p.Title
	return &refusal
}

// parse reads an answer. Its errors are a *ProblemError and an *unavailableError.
func parse(status int, text []byte, answer answer) error {
	// encoding/json would take broken strings, and nests to a bounded depth.
	if !utf8.Valid(text) {
		return notSpillgate("it is not UTF-8")
	}
	if status == http.StatusOK {
		if err := json.Unmarshal(text, answer); err != nil {
			return notSpillgate(err.Error())
		}
		if !answer.isComplete() {
			return notSpillgate("it has no decision, or not one for each check")
		}
		return nil
	}
	var told problem
	if err := json.Unmarshal(text, &told); err != nil {
		return notSpillgate(fmt.Sprintf("status %d", status))
	}
	told.Status = status
	isRefusal := status >= 400 && status < 500 && status != http.StatusRequestTimeout
	switch {
	case isRefusal && told.isOfSpillgate():
		return told.err()
	// A load balancer also answers 503, but with neither field.
	case status == http.StatusServiceUnavailable && (told.Reason == ReasonOverloaded || told.Retryable):
		if decided, is := answer.(*decided); is && told.Reason == ReasonOverloaded {
			// A reservation for whose record the store has no room.
			return json.Unmarshal(overloaded, decided)
		}
		return &unavailableError{why: "the server cannot do this now: " + shortened(told.Detail), hasAnswered: true}
	}
	return notSpillgate(fmt.Sprintf("status %d", status))
}

// answerMax is how much of an answer is read: what the checks in the call need at most, so that the memory of all calls
// together is bounded by what the application asks.
func answerMax(checks int) int64 {
	return int64(min(answerBytesMax, answerBytesOfCall+checks*answerBytesOfCheck))
}

func isFieldName(name string) bool {
	for i := 0; i < len(name); i++ {
		c := name[i]
		isLetter := 'a' <= c|0x20 && c|0x20 <= 'z'
		if !isLetter && !('0' <= c && c <= '9') && !bytes.ContainsRune([]byte("!#$%&'*+-.^_`|~"), rune(c)) {
			return false
		}
	}
	return name != "" && !framing[http.CanonicalHeaderKey(name)]
}

func isFieldValue(value string) bool {
	for i := 0; i < len(value); i++ {
		if c := value[i]; (c < ' ' && c != '\t') || c == 0x7f {
			return false
		}
	}
	return true
}

var (
	overloaded = []byte(`{"allowed":false,"reason":"overloaded","source":"outage-policy","degraded":true}`)
	// framing has the fields that say where a message ends: they belong to the application's own HTTP server.
	framing = map[string]bool{"Connection": true, "Content-Length": true, "Trailer": true, "Transfer-Encoding": true, "Upgrade": true}
)

const (
	// The server decides by 64 counters at most, whose names may have braces as well.
	bracesMax = 256
	// The server reports 16 names at most.
	unusedMax          = 64
	answerBytesMax     = 16 << 20
	answerBytesOfCall  = 64 << 10
	answerBytesOfCheck = 32 << 10
)
