package check

import (
	"context"
	"errors"
	"regexp"
	"strings"
	"testing"

	"culvert/gateway/node"
	"culvert/integration/lab"
)

// printed runs made-up checks of all labs there are, and returns what is printed.
func printed(t *testing.T, o Options, run func(context.Context) (string, error)) (lines []string, err error) {
	t.Helper()
	var plan []plannedLab
	for _, mode := range o.Modes {
		plan = append(plan, o.labs(mode)...)
	}
	var out strings.Builder
	p := newPrinter(&out, &o, plan)
	for _, l := range plan {
		p.lab(l.options)
		for _, h := range headlines {
			p.run(t.Context(), lab.Check{Name: h.check, Path: "rome/pod1 → milan/pod1", Run: run})
		}
		p.labEnds()
	}
	err = p.finish(t.TempDir())
	return strings.Split(strings.TrimSuffix(out.String(), "\n"), "\n"), err
}

func passes(context.Context) (string, error) { return "p50 0.12 ms, p99 1 ms; more", nil }

// TestBriefReport wants all labs of a machine that has all modes, or lacks one, told
// in 40 lines with a figure each.
func TestBriefReport(t *testing.T) {
	for _, o := range []Options{
		{Modes: []node.Mode{node.Geneve, node.VXLAN, node.TUN}},
		{Modes: []node.Mode{node.TUN}, Missing: map[node.Mode]error{node.Geneve: errors.ErrUnsupported,
			node.VXLAN: errors.ErrUnsupported}},
	} {
		o.Labs, o.Offloads, o.Short, o.Style = LabNames(), []bool{true, false}, true, Brief
		lines, err := printed(t, o, passes)
		if err != nil {
			t.Error(err)
		}
		if len(lines) > 40 {
			t.Errorf("%d lines, want at most 40", len(lines))
		}
		for _, line := range lines {
			if !strings.ContainsAny(line, "0123456789") {
				t.Errorf("no figure in %q", line)
			}
			if strings.HasPrefix(line, "skip") {
				t.Errorf("begins badly: %q", line)
			}
		}
		all := strings.Join(lines, "\n")
		for mode := range o.Missing {
			if want := "left out: 4 labs with nodes " + string(mode) +
				", which this machine refuses: unsupported operation"; !strings.Contains(all, want) {
				t.Errorf("no %q in\n%s", want, all)
			}
		}
		for _, want := range []string{"ping p50 0.12 ms, TCP p50 0.12 ms", "innocents lost 0", "s to go", "0 failed",
			" exec rome/pod1 ping milan/pod1"} {
			if !strings.Contains(all, want) {
				t.Errorf("no %q in\n%s", want, all)
			}
		}
	}
}

// TestReportStyles wants a line for each check where there is to be one, and each
// failure told in all.
func TestReportStyles(t *testing.T) {
	for _, test := range []struct {
		style     Style
		line      string // that each check has
		ok, fails int    // lines like it, where checks pass and where they fail
	}{
		{Table, `(?m)^(ok  |FAIL) .* rome/pod1 → milan/pod1 `, len(headlines), len(headlines)},
		{Verbose, `(?m)^(ok  |FAIL) .* rome/pod1 → milan/pod1 `, len(headlines), len(headlines)},
		{Brief, `(?m)^(ok  |FAIL) .* rome/pod1 → milan/pod1`, 0, len(headlines)},
		{JSON, `(?m)^\{"lab":"nodes vxlan, offloads on \(super-frames\)","check":.*"ok":(true|false)`, len(headlines),
			len(headlines)},
	} {
		o := Options{Modes: []node.Mode{node.VXLAN}, Offloads: []bool{true}, Labs: []string{ipv4Labs},
			Faults: true, Style: test.style}
		lines, err := printed(t, o, passes)
		if n := len(regexp.MustCompile(test.line).FindAllString(strings.ReplaceAll(strings.Join(lines, " \n"), "pod1\n",
			"pod1 \n"), -1)); n != test.ok || err != nil {
			t.Errorf("style %d: %d lines and %v, want %d:\n%s", test.style, n, err, test.ok, strings.Join(lines, "\n"))
		}
		lines, err = printed(t, o, func(context.Context) (string, error) { return "", errors.New("no answer") })
		all := strings.Join(lines, " \n") + " "
		if n := len(regexp.MustCompile(test.line).FindAllString(all, -1)); n != test.fails ||
			!errors.Is(err, ErrFailed) || strings.Count(all, "no answer") != test.fails {
			t.Errorf("style %d: %d lines and %v, want %d:\n%s", test.style, n, err, test.fails, all)
		}
	}
}
