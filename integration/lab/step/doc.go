// Package step writes a check as a list of steps, of which the first error ends it, as t.Fatal ends
// a test. A function that defers Catch may write its steps with Try and Must: they leave it with
// the error. They work only in the function that defers Catch itself, not in a goroutine or a
// callback inside it; a test verifies that.
package step
