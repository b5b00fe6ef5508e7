package lab

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"culvert/gateway/node"
	"culvert/integration/lab/plan"
	"culvert/integration/lab/step"
)

// attackMemory is what a gateway in a control group of 64 MiB chooses for itself.
const attackMemory = "GOMEMLIMIT=46976204"

// Attacks is a lab in which each check has an attacker and an innocent bystander, which must lose
// nothing.
func Attacks(mode node.Mode, offloads bool) Options {
	o := Outside(mode, offloads)
	o.Attacks = true
	return o
}

// AttackChecks are the attacks in which one party harms another.
func AttackChecks(l *Lab) []Check {
	return slices.Concat(l.tableAttacks(), l.forgeries(), l.listenerAttacks())
}

// against is a check with fresh gateways; change, if not nil, changes their configurations.
func (l *Lab) against(name, path string, change func(i int, config Object), attack func(context.Context) (string,
	error)) Check {
	return Check{name, path, func(ctx context.Context) (figure string, err error) {
		if err := l.freshGateways(ctx, change); err != nil {
			return "", err
		}
		figure, err = attack(ctx)
		if err = errors.Join(err, l.removeEnded()); err != nil {
			err = fmt.Errorf("%w\ndropped meanwhile:\n%s", err, l.Dropped(ctx))
		}
		return figure, err
	}}
}

// setting is a change for against: one field of both configurations.
func setting(path string, value any) func(int, Object) {
	return func(_ int, config Object) { set(config, path, value) }
}

// freshGateways restarts both gateways without their former connections.
func (l *Lab) freshGateways(ctx context.Context, change func(i int, config Object)) (err error) {
	defer step.Catch(&err)
	for i := range plan.V4 {
		config := l.gatewayConfig(i)
		if change != nil {
			change(i, config)
		}
		step.Try(l.WriteYAML(plan.V4[i].Name, "gateway.yaml", config))
	}
	step.Try(end(l.Gateways()...))
	for i := range plan.V4 {
		if err := os.Remove(l.Path(plan.V4[i].Name, filepath.Join("state", plan.V4[1-i].Name, "connections"))); err !=
			nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return l.UseGateways(ctx, &CulvertGateway)
}

// removeEnded removes processes that have ended from the list, and returns an error if there are
// any.
func (l *Lab) removeEnded() error {
	var errs []error
	l.Processes = slices.DeleteFunc(l.Processes, func(p *Process) bool {
		if p.Running() {
			return false
		}
		errs = append(errs, fmt.Errorf("%s ended (%w): %s", p.Name(), exitError(p.err), Tail(p.Log, 1)))
		return true
	})
	return errors.Join(errs...)
}

// Dropped lists what the gateways have dropped since they started, and why.
func (l *Lab) Dropped(ctx context.Context) string {
	var all strings.Builder
	for _, p := range l.Gateways() {
		page, err := gatewayGet(ctx, p.Host, "/metrics")
		if err != nil {
			fmt.Fprintf(&all, "  %s: %v\n", p.Host.Name, err)
		}
		for line := range strings.Lines(page) {
			if labels, ok := strings.CutPrefix(line, "culvert_dropped_packets_total"); ok &&
				!strings.HasSuffix(line, " 0\n") {
				fmt.Fprintf(&all, "  %s: %s", p.Host.Name, labels)
			}
		}
	}
	return all.String()
}
