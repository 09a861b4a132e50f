package spillgate

import (
	"bufio"
	"context"
	"io"
	"net"
	"net/http"
)

// A limitedWriter adds fields when the head is written, unless the application wrote one of them: an inner layer stands
// nearer to the work. It also notes the status.
type limitedWriter struct {
	http.ResponseWriter
	fields map[string]string
	// request ends when the client leaves.
	request context.Context
	// status is 0 until the head is written.
	status int
	// hasLeft: the client was gone when the response began.
	hasLeft bool
}

// begin comes before the head is written.
func (w *limitedWriter) begin(status int) {
	if w.status != 0 {
		return
	}
	w.status, w.hasLeft = status, w.request.Err() != nil
	header := w.Header()
	for name := range w.fields {
		if header.Get(name) != "" {
			return
		}
	}
	for name, value := range w.fields {
		header.Set(name, value)
	}
}

func (w *limitedWriter) WriteHeader(status int) {
	if status >= http.StatusOK || status == http.StatusSwitchingProtocols {
		w.begin(status)
	}
	w.ResponseWriter.WriteHeader(status)
}

func (w *limitedWriter) Write(body []byte) (int, error) {
	w.begin(http.StatusOK)
	return w.ResponseWriter.Write(body)
}

// ReadFrom keeps the way by which files are sent without copying.
func (w *limitedWriter) ReadFrom(body io.Reader) (int64, error) {
	w.begin(http.StatusOK)
	return io.Copy(w.ResponseWriter, body)
}

// Flush serves handlers that look for http.Flusher.
func (w *limitedWriter) Flush() { _ = w.FlushError() }

// FlushError serves http.ResponseController, by which handlers learn that a client has gone.
func (w *limitedWriter) FlushError() error {
	w.begin(http.StatusOK)
	return http.NewResponseController(w.ResponseWriter).Flush()
}

// Hijack serves handlers that look for http.Hijacker, such as those of WebSockets.
func (w *limitedWriter) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	connection, buffer, err := http.NewResponseController(w.ResponseWriter).Hijack()
	if err == nil && w.status == 0 {
		w.status = http.StatusSwitchingProtocols
	}
	return connection, buffer, err
}

// Unwrap serves http.ResponseController.
func (w *limitedWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// outcome returns the status of the response. A panic before the head is an error of the server.
func (w *limitedWriter) outcome(hasPanicked bool) int {
	switch {
	case w.status != 0:
		return w.status
	case hasPanicked:
		w.hasLeft = w.request.Err() != nil
		return http.StatusInternalServerError
	}
	return http.StatusOK
}
