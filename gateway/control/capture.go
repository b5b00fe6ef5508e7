package control

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
)

// CaptureOptions select what is captured.
type CaptureOptions struct {
	// At are the stages: geneve, pre, post, wireguard; none = all.
	At      []string
	Drops   bool // only what is dropped
	Filter  Filter
	Count   uint64 // of packets, after which the capture ends; 0 = none
	Snaplen int    // bytes kept of each packet; 0 = all
	// Verdict and Reasons select packets by outcome.
	Verdict string   // forward, drop, deliver or hold; "" = any
	Reasons []string // drop reasons, any of; none = any
}

// Verdicts are the possible outcomes for a packet.
var Verdicts = []string{"forward", "drop", "deliver", "hold"}

// Values returns o as query parameters.
func (o *CaptureOptions) Values() url.Values {
	v := o.Filter.Values()
	for _, stage := range o.At {
		v.Add("at", stage)
	}
	if o.Drops {
		v.Set("drops", "true")
	}
	for _, reason := range o.Reasons {
		v.Add("reason", reason)
	}
	if o.Verdict != "" {
		v.Set("verdict", o.Verdict)
	}
	if o.Count > 0 {
		v.Set("count", strconv.FormatUint(o.Count, 10))
	}
	if o.Snaplen > 0 {
		v.Set("snaplen", strconv.Itoa(o.Snaplen))
	}
	return v
}

func parseCapture(v url.Values) (o CaptureOptions, err error) {
	o.At, o.Reasons = v["at"], v["reason"]
	v = cloneWithout(v, "at", "reason")
	var errs []error
	if o.Filter, err = ParseFilter(v, "drops", "count", "snaplen", "verdict"); err != nil {
		errs = append(errs, err)
	}
	if v.Has("drops") {
		if o.Drops, err = parseBool(v.Get("drops")); err != nil {
			errs = append(errs, fmt.Errorf("drops: %w", err))
		}
	}
	if o.Verdict = v.Get("verdict"); o.Verdict != "" && !slices.Contains(Verdicts, o.Verdict) {
		errs = append(errs, fmt.Errorf("verdict: %q is none of %s", o.Verdict, strings.Join(Verdicts, ", ")))
	}
	if s := v.Get("count"); s != "" {
		if o.Count, err = strconv.ParseUint(s, 10, 64); err != nil {
			errs = append(errs, fmt.Errorf("count: %q is no number of packets", s))
		}
	}
	if s := v.Get("snaplen"); s != "" {
		if o.Snaplen, err = strconv.Atoi(s); err != nil || o.Snaplen < 0 {
			errs = append(errs, fmt.Errorf("snaplen: %q is no number of bytes", s))
		}
	}
	return o, errors.Join(errs...)
}

func cloneWithout(v url.Values, names ...string) url.Values {
	c := make(url.Values, len(v))
	for key, values := range v {
		if !slices.Contains(names, key) {
			c[key] = values
		}
	}
	return c
}

// Trailers of a capture.
const (
	TrailerPackets = "Culvert-Packets"
	TrailerLost    = "Culvert-Lost"
)

func serveCapture(s Source) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		o, err := parseCapture(r.URL.Query())
		if err != nil {
			refuse(w, err)
			return
		}
		control := http.NewResponseController(w)
		control.EnableFullDuplex() // HTTP/1.1 on our own socket supports it
		ctx, cancel := context.WithCancel(r.Context())
		defer cancel()
		go func() {
			io.Copy(io.Discard, r.Body)
			cancel()
		}()
		out := &begun{w: w, control: control, kind: "application/vnd.tcpdump.pcap",
			trailers: TrailerPackets + ", " + TrailerLost}
		packets, lost, err := s.Capture(ctx, &o, out, out.flush)
		out.renew(time.Now()) // for the last chunk
		switch {
		case err != nil && !out.yes:
			refuse(w, err)
		case err != nil:
			panic(http.ErrAbortHandler) // omits the last chunk, as a sign of failure
		default:
			w.Header().Set(TrailerPackets, strconv.FormatUint(packets, 10))
			w.Header().Set(TrailerLost, strconv.FormatUint(lost, 10))
		}
	}
}

// begun is an answer that may still become an Error until something is written.
type begun struct {
	w        http.ResponseWriter
	control  *http.ResponseController
	kind     string // its content type
	trailers string
	yes      bool
	renewed  time.Time
}

func (b *begun) begin() {
	if !b.yes {
		b.yes = true
		b.w.Header().Set("Content-Type", b.kind)
		b.w.Header().Set("Trailer", b.trailers)
	}
}

func (b *begun) Write(p []byte) (int, error) {
	b.begin()
	if now := time.Now(); now.Sub(b.renewed) > time.Second {
		b.renew(now)
	}
	return b.w.Write(p)
}

func (b *begun) flush() error {
	b.begin()
	b.renew(time.Now())
	return b.control.Flush()
}

// renew extends the client's deadline. The gateway's own time between two writes does not count.
func (b *begun) renew(now time.Time) {
	b.control.SetWriteDeadline(now.Add(answerTime))
	b.renewed = now
}

// Capture writes pcapng to w until ctx is done, and returns how many packets it contains and how
// many were lost.
func (c *Client) Capture(ctx context.Context, o *CaptureOptions, w io.Writer) (packets, lost uint64, err error) {
	body, end := io.Pipe()
	defer end.Close()
	// The end of the request's body ends the capture; a gateway that does not respond is abandoned.
	lasting, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	defer context.AfterFunc(ctx, func() {
		end.Close()
		time.AfterFunc(answerTime, cancel)
	})()
	response, err := c.Open(lasting, http.MethodPost, "/v1/capture", o.Values(), body)
	if err != nil {
		return 0, 0, err
	}
	defer response.Body.Close()
	if _, err := io.Copy(w, response.Body); err != nil {
		return 0, 0, c.unread(err)
	}
	packets, _ = strconv.ParseUint(response.Trailer.Get(TrailerPackets), 10, 64)
	lost, _ = strconv.ParseUint(response.Trailer.Get(TrailerLost), 10, 64)
	return packets, lost, nil
}

// From is the source with its port.
func (t *Tuple) From() netip.AddrPort { return netip.AddrPortFrom(t.Source, t.SourcePort) }

// To is the destination with its port.
func (t *Tuple) To() netip.AddrPort { return netip.AddrPortFrom(t.Destination, t.DestinationPort) }
