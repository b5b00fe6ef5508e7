package lab

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// A check is a list of steps, and the first error ends it, as t.Fatal ends a test. A function that
// defers catch may write its steps with try and must: they leave it with the error. They work only
// in the function that defers catch itself, not in a goroutine or a callback inside it; a test
// verifies that.

// failure is what try and must panic with.
type failure struct{ error }

// try ends the function if err is not nil.
func try(err error) {
	if err != nil {
		panic(failure{err})
	}
}

// must returns v, or ends the function if err is not nil.
func must[T any](v T, err error) T {
	try(err)
	return v
}

// must2 is must for functions that return two values.
func must2[T, U any](v T, w U, err error) (T, U) {
	try(err)
	return v, w
}

// catch must be deferred. It makes the error that ended the function its result, joined with an
// error of a deferred function.
func catch(err *error) {
	switch r := recover().(type) {
	case nil:
	case failure:
		if *err == nil || errors.Is(r.error, *err) {
			*err = r.error
		} else {
			*err = errors.Join(r.error, *err)
		}
	default:
		panic(r)
	}
}

// await calls step until it returns nil, with a pause of pace after each call. It returns the last
// error after limit, or when ctx is done.
func await(ctx context.Context, limit, pace time.Duration, step func() error) error {
	for began := time.Now(); ; {
		err := step()
		if err == nil {
			return nil
		}
		if time.Since(began) > limit {
			return fmt.Errorf("for %v: %w", limit, err)
		}
		if e := sleep(ctx, pace); e != nil {
			return errors.Join(e, err)
		}
	}
}
