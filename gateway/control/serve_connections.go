package control

import (
	"encoding/json"
	"net/http"
	"time"
)

// lines writes NDJSON. Nothing is sent before the first line or flush, so that an error
// until then can be the answer.
type lines struct {
	w       http.ResponseWriter
	control *http.ResponseController
	encoder *json.Encoder
	begun   bool
	waiting int // lines since the last flush
	renewed time.Time
}

func newLines(w http.ResponseWriter) *lines {
	return &lines{w: w, control: http.NewResponseController(w), encoder: json.NewEncoder(w)}
}

// begin sends the head of the answer.
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

// line sends v; false: the client is gone, or takes nothing.
func (l *lines) line(v any) bool {
	l.begin()
	l.waiting++
	return l.encoder.Encode(v) == nil
}

// flush sends what waits.
func (l *lines) flush() bool {
	if l.begun && l.waiting == 0 {
		return true
	}
	l.begin()
	l.waiting = 0
	return l.control.Flush() == nil
}

// end is the end of a list that may have failed.
func (l *lines) end(err error) {
	switch {
	case err != nil && !l.begun:
		refuse(l.w, err)
	case err != nil:
		panic(http.ErrAbortHandler) // the last chunk does not come: the list is not whole
	default:
		l.begin()
	}
}

// withFilter calls serve with the filter of a request.
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
		l.end(s.Connections(r.Context(), f, func(c *Connection) bool { return l.line(c) }))
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
