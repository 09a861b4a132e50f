package spillgate

import (
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"strings"
	"time"
)

// OnFailure is the decision of a client if the server does not answer.
type OnFailure int

const (
	// OnFailureAllow fails open.
	OnFailureAllow OnFailure = iota
	// OnFailureDeny fails closed.
	OnFailureDeny
)

func (o OnFailure) String() string {
	if o == OnFailureDeny {
		return "deny"
	}
	return "allow"
}

// DefaultTimeout is longer than the 250 ms after which the server answers an overload, so that its answer comes first.
const DefaultTimeout = 300 * time.Millisecond

// DefaultURL is where a server listens that runs beside the application.
const DefaultURL = "http://127.0.0.1:8080"

// Options are the settings of a Client. Every field has a default.
type Options struct {
	// URL is where the server listens: DefaultURL if empty.
	URL string
	// Token is the bearer token; none if empty. White space around it is cut off, since files end with a newline.
	Token string
	// TokenFunc returns the token for each call instead, for a token that changes.
	TokenFunc func() string
	// Timeout is the time until OnFailure decides: DefaultTimeout if 0. It is the silence of the server that counts, not
	// the time in which this process was too busy to read.
	Timeout time.Duration
	// OnFailure decides if the server does not answer.
	OnFailure OnFailure
	// Observe is called after each call, for metrics.
	Observe func(Call)
	// Logger gets a warning when the server stops answering, one when it answers again, and one for each route whose
	// requests it refuses, at most one in ten seconds each, and one for each name that no rule uses: slog.Default() if nil.
	Logger *slog.Logger
	// Transport replaces the client's own, for certificates or a proxy of yours. Its time-outs, if it has any, count time
	// in which this process is busy, so leave them to the client. It must end a call when the context of the request ends.
	Transport http.RoundTripper
}

// withDefaults returns options that hold, or an error that names the one that does not.
func (o Options) withDefaults() (Options, error) {
	if o.URL == "" {
		o.URL = DefaultURL
	}
	if o.Timeout == 0 {
		o.Timeout = DefaultTimeout
	}
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	o.URL = strings.TrimRight(o.URL, "/")
	if parsed, err := url.Parse(o.URL); err != nil || (parsed.Scheme != "http" && parsed.Scheme != "https") || parsed.Host == "" {
		return o, fmt.Errorf("spillgate: URL: %q is not a valid address; write one such as %s", o.URL, DefaultURL)
	}
	if o.Timeout < 0 {
		return o, fmt.Errorf("spillgate: Timeout must be greater than 0, got %v", o.Timeout)
	}
	if o.OnFailure != OnFailureAllow && o.OnFailure != OnFailureDeny {
		return o, fmt.Errorf("spillgate: OnFailure must be OnFailureAllow or OnFailureDeny, got %d", int(o.OnFailure))
	}
	if o.Token != "" && o.TokenFunc != nil {
		return o, fmt.Errorf("spillgate: set Token or TokenFunc, not both")
	}
	if _, err := bearer(o.Token); err != nil {
		return o, err
	}
	if o.TokenFunc == nil {
		token := o.Token
		o.TokenFunc = func() string { return token }
	}
	return o, nil
}
