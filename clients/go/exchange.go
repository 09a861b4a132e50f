package spillgate

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"time"
)

// An exchange is one call as the server sees it.
type exchange struct {
	path, token string
	body        []byte
	// checks is the number of decisions that it asks for.
	checks int
}

// exchange posts, and reads the answer. The context of the flight bounds the time until the last byte of the body.
func (c *Client) exchange(f *flight, e exchange, answer answer) error {
	status, text, err := c.post(f, e)
	if cause := context.Cause(f); err != nil && cause != nil {
		return cause
	}
	if err != nil {
		return err
	}
	if err := parse(status, text, answer); err != nil {
		return err
	}
	c.log.unused(answer.unused())
	return nil
}

func (c *Client) post(ctx context.Context, e exchange) (int, []byte, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, c.url+e.path, bytes.NewReader(e.body))
	if err != nil {
		return 0, nil, unavailable(err)
	}
	request.Header["Content-Type"] = contentType
	if e.token != "" {
		request.Header.Set("Authorization", "Bearer "+e.token)
	}
	response, err := c.http.Do(request)
	if err != nil {
		return 0, nil, unavailable(err)
	}
	defer response.Body.Close()
	if response.StatusCode < http.StatusOK {
		// 101 hands over the connection as its body, which would never end.
		return 0, nil, notSpillgate(fmt.Sprintf("status %d", response.StatusCode))
	}
	most := answerMax(e.checks)
	text, err := io.ReadAll(io.LimitReader(response.Body, most+1))
	if err != nil {
		return 0, nil, unavailable(err)
	}
	if int64(len(text)) > most {
		return 0, nil, notSpillgate(fmt.Sprintf("it has more than %d bytes", most))
	}
	return response.StatusCode, text, nil
}

func newHTTPClient(transport http.RoundTripper) *http.Client {
	if transport == nil {
		transport = newTransport()
	}
	return &http.Client{
		Transport: transport,
		// A redirect is not an answer of Spillgate, and following it would send the token elsewhere.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

func newTransport() *http.Transport {
	dialer := &net.Dialer{Timeout: dialing, KeepAlive: 30 * time.Second}
	return &http.Transport{
		DialContext:            dialer.DialContext,
		TLSHandshakeTimeout:    dialing,
		MaxConnsPerHost:        connections,
		MaxIdleConns:           connections,
		MaxIdleConnsPerHost:    connections,
		IdleConnTimeout:        idle,
		DisableCompression:     true,
		MaxResponseHeaderBytes: headMax,
		// A batch takes a few reads and writes, each of which may wait for its turn on a busy machine.
		ReadBufferSize:  bufferSize,
		WriteBufferSize: bufferSize,
	}
}

// bearer returns the token as a header field may have it.
func bearer(token string) (string, error) {
	token = strings.TrimSpace(token)
	for i := 0; i < len(token); i++ {
		if token[i] <= ' ' || token[i] > '~' {
			return "", ErrInvalidToken
		}
	}
	return token, nil
}

var contentType = []string{"application/json"}

const (
	// The server closes a connection that is idle for 75 s.
	idle = 60 * time.Second
	// Dialling goes on when its call has ended, so it needs a bound of its own.
	dialing    = time.Minute
	headMax    = 64 << 10
	bufferSize = 32 << 10
)
