package spillgate

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/http"
	"regexp"
	"strings"
	"time"
	"unicode/utf8"
)

// A Cost is an amount for each unit. Nil is one request; an amount of 0 only looks.
type Cost map[string]int64

// Requests is the cost of n requests.
func Requests(n int64) Cost { return Cost{"requests": n} }

// A Request is one check: attributes that the rules match and limit by, or a key that brings its own limit. The client
// shortens an attribute or key above 4 KiB to its first and last 1,024 bytes, with a hash between them.
type Request struct {
	Domain     string            `json:"domain,omitempty"`
	Attributes map[string]string `json:"attributes,omitempty"`
	Cost       Cost              `json:"cost,omitempty"`
	Key        string            `json:"key,omitempty"`
	Limit      *InlineLimit      `json:"limit,omitempty"`

	// Wait is how long to wait for room, at most a minute. It adds to the time-out. The server waits, after the client has
	// a connection for the call. At most 32 calls of a client wait at once. If all of these are taken until
	// its wait is over, a request is decided without one.
	Wait time.Duration `json:"-"`
	// Headers is the style of the header fields in the answer, such as "ietf"; none if empty.
	Headers string `json:"headers,omitempty"`
}

// An InlineLimit comes with a request. Its Quota is such as "5/minute" or "1_000/30s", "unlimited" or "block", or a number
// of permits.
type InlineLimit struct {
	Quota     string `json:"quota"`
	Burst     int64  `json:"burst,omitempty"`
	Algorithm string `json:"algorithm,omitempty"`
	TimeZone  string `json:"time_zone,omitempty"`
	MaxHold   string `json:"max_hold,omitempty"`
}

// isQuota reports whether the server can read a quota. It does not check the numbers, which the server bounds. Only a
// limit of another algorithm, such as concurrency, may have no period.
func (l *InlineLimit) isQuota() bool {
	return quotas.MatchString(l.Quota) && (l.Algorithm != "" || !isCount.MatchString(l.Quota))
}

var isCount = regexp.MustCompile(`^[\d_]+$`)

// quotas has the grammar of the server: a count with single underscores, and a period that is a word, or a unit with or
// without a number.
var quotas = regexp.MustCompile(
	`^(unlimited|block|(\d+_)*\d+(/(second|minute|hour|day|week|month|year|((\d+_)*\d+)?(ms|[smhd])))?)$`)

// A checkBody is a check as the server reads it.
type checkBody struct {
	Request
	WaitMs int64 `json:"wait_ms,omitempty"`
}

// A reserveBody is a reservation as the server reads it.
type reserveBody struct {
	Request
	TTLMs int64  `json:"ttl_ms"`
	ID    string `json:"id"`
}

// encode writes a body of a call. A request that no batch could carry is a problem of its own.
func encode(body any) ([]byte, error) {
	message, err := marshal(body)
	if err != nil {
		return nil, &ProblemError{Status: http.StatusBadRequest, Title: "Bad Request", Detail: err.Error()}
	}
	if len(message)+len("[,]") > batchBytesMax {
		detail := fmt.Sprintf("the request has %d bytes, at most %d are accepted", len(message), batchBytesMax)
		return nil, &ProblemError{Status: http.StatusRequestEntityTooLarge, Title: "Request Entity Too Large", Detail: detail}
	}
	return message, nil
}

// marshal writes JSON without the escapes for HTML.
func marshal(value any) ([]byte, error) {
	var text bytes.Buffer
	encoder := json.NewEncoder(&text)
	encoder.SetEscapeHTML(false)
	err := encoder.Encode(value)
	return bytes.TrimSuffix(text.Bytes(), []byte("\n")), err
}

// routeKey is the key of a route's counter. It must be the same string in all clients, which escape only what JSON says.
func routeKey(name, subject string) string {
	// Strings always encode.
	key, _ := marshal([]string{name, subject})
	return unescaped.Replace(string(key))
}

// unescaped undoes the escapes that encoding/json writes for JavaScript only. It takes an escaped backslash first, since
// what follows that is no escape.
var unescaped = strings.NewReplacer(`\\`, `\\`, `\u2028`, "\u2028", `\u2029`, "\u2029")

// withBoundedValues returns the request as the server accepts it, so that no stranger's value causes an error.
func (r Request) withBoundedValues() Request {
	r.Key = bounded(r.Key)
	for _, value := range r.Attributes {
		if isBounded(value) {
			continue
		}
		values := make(map[string]string, len(r.Attributes))
		for name, value := range r.Attributes {
			values[name] = bounded(value)
		}
		r.Attributes = values
		break
	}
	return r
}

func isBounded(value string) bool { return len(value) <= valueMax && utf8.ValidString(value) }

// bounded makes any string a value that the server accepts.
func bounded(value string) string {
	if isBounded(value) {
		return value
	}
	valid := strings.ToValidUTF8(value, "\uFFFD")
	if len(valid) <= valueMax {
		return valid
	}
	hash := sha256.Sum256([]byte(value))
	// Both ends stay, so that rules for a prefix or a suffix match.
	first, last := valid[:endMax], valid[len(valid)-endMax:]
	return strings.ToValidUTF8(first+"sha256:"+hex.EncodeToString(hash[:])+last, "")
}

const (
	valueMax = 4096
	// The bytes at either end of a longer value that rules see.
	endMax = 1024
)
