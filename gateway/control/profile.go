package control

import (
	"fmt"
	"net/http"
	"os"
	"runtime"
	"runtime/pprof"
	"runtime/trace"
	"strconv"
	"strings"
	"time"
)

// maxProfile is how long a profile or trace of time may take, and profileTime how long it takes if nothing is said.
const (
	maxProfile  = 10 * time.Minute
	profileTime = 30 * time.Second
)

// serveProfile serves the profiles of runtime/pprof under the names, and with the parameters, that go tool pprof and go tool trace know
// from net/http/pprof. That package itself brings a reader of profiles for comparing two of them, which the tools do as well.
func serveProfile(w http.ResponseWriter, r *http.Request) {
	name := r.PathValue("name")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	switch name {
	case "":
		fmt.Fprintln(w, "cmdline\nprofile?seconds=30\ntrace?seconds=1")
		for _, p := range pprof.Profiles() {
			fmt.Fprintln(w, p.Name())
		}
	case "cmdline":
		fmt.Fprint(w, strings.Join(os.Args, "\x00"))
	case "profile":
		profileFor(w, r, func() error { return pprof.StartCPUProfile(w) }, pprof.StopCPUProfile)
	case "trace":
		profileFor(w, r, func() error { return trace.Start(w) }, trace.Stop)
	default:
		p := pprof.Lookup(name)
		if p == nil {
			fail(w, http.StatusNotFound, "no profile "+name)
			return
		}
		debug, err := strconv.Atoi(r.FormValue("debug"))
		if err != nil {
			debug = 0
		}
		if name == "heap" && r.FormValue("gc") != "" {
			runtime.GC()
		}
		w.Header().Set("Content-Type", map[bool]string{true: "application/octet-stream", false: "text/plain; charset=utf-8"}[debug == 0])
		p.WriteTo(w, debug) // whoever reads it sees that it is cut short
	}
}

// profileFor records for as long as the request says, or until who asks has gone.
func profileFor(w http.ResponseWriter, r *http.Request, start func() error, stop func()) {
	d := profileTime
	if text := r.FormValue("seconds"); text != "" {
		seconds, err := strconv.ParseFloat(text, 64)
		if err != nil || !(seconds > 0) || seconds > maxProfile.Seconds() {
			fail(w, http.StatusBadRequest, fmt.Sprintf("seconds: %q is no number of seconds up to %v", text, maxProfile))
			return
		}
		d = time.Duration(seconds * float64(time.Second))
	}
	w.Header().Set("Content-Type", "application/octet-stream")
	if err := start(); err != nil { // one is being recorded
		fail(w, http.StatusConflict, err.Error())
		return
	}
	defer stop()
	select {
	case <-r.Context().Done():
	case <-time.After(d):
	}
}
