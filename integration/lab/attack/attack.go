package attack

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"culvert/integration/lab"
)

// attacks are on a lab.
type attacks struct{ *lab.Lab }

// Checks are the attacks in which one party harms another.
func Checks(l *lab.Lab) []lab.Check {
	a := &attacks{l}
	return slices.Concat(a.tableAttacks(), a.forgeries(), a.listenerAttacks())
}

// against is a check with fresh gateways; change, if not nil, changes their configurations.
func (l *attacks) against(name, path string, change func(i int, config lab.Object),
	attack func(context.Context) (string, error)) lab.Check {
	return lab.Check{Name: name, Path: path, Run: func(ctx context.Context) (figure string, err error) {
		if err := l.FreshGateways(ctx, change); err != nil {
			return "", err
		}
		figure, err = attack(ctx)
		if err = errors.Join(err, l.RemoveEnded()); err != nil {
			err = fmt.Errorf("%w\ndropped meanwhile:\n%s", err, l.Dropped(ctx))
		}
		return figure, err
	}}
}

// setting is a change for against: one field of both configurations.
func setting(path string, value any) func(int, lab.Object) {
	return func(_ int, config lab.Object) { lab.Set(config, path, value) }
}
