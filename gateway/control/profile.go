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

// maxProfile limits the duration of a timed profile or trace; profileTime is the default.
const (
	maxProfile  = 10 * time.Minute
	profileTime = 30 * time.Second
)

// serveProfile serves the profiles of runtime/pprof under the names, and with the parameters, that
// go tool pprof and go tool trace know from net/http/pprof. net/http/pprof itself would add a
// reader that compares profiles, which the tools can do too.
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
		w.Header().Set("Content-Type", map[bool]string{true: "application/octet-stream",
			false: "text/plain; charset=utf-8"}[debug == 0])
		p.WriteTo(w, debug) // the reader sees that it is cut short
	}
}

// profileFor records for as long as the request says, or until the client has gone.
func profileFor(w http.ResponseWriter, r *http.Request, start func() error, stop func()) {
	d := profileTime
	if text := r.FormValue("seconds"); text != "" {
		seconds, err := strconv.ParseFloat(text, 64)
		if err != nil || !(seconds > 0) || seconds > maxProfile.Seconds() {
			fail(w, http.StatusBadRequest, fmt.Sprintf("seconds: %q is no number of seconds up to %v",
				text, maxProfile))
			return
		}
		d = time.Duration(seconds * float64(time.Second))
	}
	w.Header().Set("Content-Type", "application/octet-stream")
	if err := start(); err != nil { // another one is being recorded
		fail(w, http.StatusConflict, err.Error())
		return
	}
	defer stop()
	select {
	case <-r.Context().Done():
	case <-time.After(d):
	}
}
