package control

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"time"
)

// TrailerTook is how long the slow batch took, in the format of time.Duration.
const TrailerTook = "Culvert-Took"

// flightSource is a Source that can record its execution.
type flightSource interface {
	// Flight calls begun when recording, waits for a batch of packets that takes longer than over, and then writes what Go's flight recorder has of
	// the preceding seconds.
	Flight(ctx context.Context, over time.Duration, w io.Writer, begun func() error) (took time.Duration, err error)
}

func serveFlight(s Source) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		text := r.URL.Query().Get("over")
		over, err := time.ParseDuration(text)
		if err != nil || over < 0 {
			refuse(w, fmt.Errorf("over: %q is no duration such as 5ms", text))
			return
		}
		out := &begun{w: w, control: http.NewResponseController(w), kind: "application/octet-stream", trailers: TrailerTook}
		took, err := s.Flight(r.Context(), over, out, out.flush)
		out.renew(time.Now()) // for the last chunk
		switch {
		case err != nil && !out.yes:
			refuse(w, err)
		case err != nil:
			panic(http.ErrAbortHandler) // omits the last chunk, as a sign of failure
		default:
			w.Header().Set(TrailerTook, took.String())
		}
	}
}

// Flight waits for a batch of packets that takes longer than over, and writes the gateway's execution in the preceding seconds, for go tool trace. It
// calls begun when the gateway is recording.
func (c *Client) Flight(ctx context.Context, over time.Duration, w io.Writer, begun func()) (took time.Duration, err error) {
	response, err := c.Open(ctx, http.MethodGet, "/debug/flight", url.Values{"over": {over.String()}}, nil)
	if err != nil {
		return 0, err
	}
	defer response.Body.Close()
	begun()
	if _, err := io.Copy(w, response.Body); err != nil {
		return 0, c.unread(err)
	}
	return time.ParseDuration(response.Trailer.Get(TrailerTook))
}
