package control

import (
	"bufio"
	"encoding/json"
	"net/http"
	"time"
)

// linesRoom is how much lines writes at once, because each write wakes the client; a connection
// uses up to lineRoom of it.
const (
	linesRoom = 32 << 10
	lineRoom  = 1 << 10
)

// lines writes NDJSON. Nothing is sent before the first line or flush, so that an error until then
// can be the answer.
type lines struct {
	w       http.ResponseWriter
	control *http.ResponseController
	buffer  *bufio.Writer
	encoder *json.Encoder
	begun   bool
	waiting int // lines since the last flush
	renewed time.Time
}

func newLines(w http.ResponseWriter) *lines {
	buffer := bufio.NewWriterSize(w, linesRoom)
	return &lines{w: w, control: http.NewResponseController(w), buffer: buffer, encoder: json.NewEncoder(buffer)}
}

// begin sends the header of the answer.
func (l *lines) begin() {
	if !l.begun {
		l.w.Header().Set("Content-Type", "application/x-ndjson")
		l.begun = true
	}
	if now := time.Now(); now.Sub(l.renewed) > time.Second {
		l.control.SetWriteDeadline(now.Add(answerTime))
		l.renewed = now
	}
}

// line sends v; false: the client is gone, or does not read.
func (l *lines) line(v any) bool {
	l.begin()
	l.waiting++
	return l.encoder.Encode(v) == nil
}

// connection sends c as a line without allocating.
func (l *lines) connection(c *Connection) bool {
	l.begin()
	if l.buffer.Available() < lineRoom {
		l.buffer.Flush()
	}
	_, err := l.buffer.Write(append(c.appendJSON(l.buffer.AvailableBuffer()), '\n'))
	return err == nil
}

// flush sends waiting lines.
func (l *lines) flush() bool {
	if l.begun && l.waiting == 0 {
		return true
	}
	l.begin()
	l.waiting = 0
	return l.buffer.Flush() == nil && l.control.Flush() == nil
}

// end completes a list, or reports its failure.
func (l *lines) end(err error) {
	switch {
	case err != nil && !l.begun:
		refuse(l.w, err)
	case err != nil:
		panic(http.ErrAbortHandler) // omits the last chunk: the list is incomplete
	default:
		l.begin()
		l.buffer.Flush()
	}
}

// withFilter calls serve with a request's filter.
func withFilter(serve func(http.ResponseWriter, *http.Request, *Filter), others ...string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		f, err := ParseFilter(r.URL.Query(), others...)
		if err != nil {
			refuse(w, err)
			return
		}
		serve(w, r, &f)
	}
}

func serveConnections(s Source) http.HandlerFunc {
	return withFilter(func(w http.ResponseWriter, r *http.Request, f *Filter) {
		l := newLines(w)
		l.end(s.Connections(r.Context(), f, l.connection))
	})
}

func serveEvents(s Source) http.HandlerFunc {
	return withFilter(func(w http.ResponseWriter, r *http.Request, f *Filter) {
		l := newLines(w)
		l.end(s.Events(r.Context(), f, func(e *Event) bool {
			if e == nil {
				return l.flush()
			}
			return l.line(e)
		}))
	})
}

func serveDelete(s Source) http.HandlerFunc {
	return withFilter(func(w http.ResponseWriter, r *http.Request, f *Filter) {
		if f.IsZero() && r.URL.Query().Get("all") != "true" {
			fail(w, http.StatusBadRequest, "which connections? Give a filter, or all=true")
			return
		}
		n, err := s.DeleteConnections(r.Context(), f)
		if err != nil {
			refuse(w, err)
			return
		}
		answer(w, Deleted{n})
	}, "all")
}
