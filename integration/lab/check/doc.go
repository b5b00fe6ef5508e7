// Package check builds labs one after the other, runs their checks, and prints what they find.
package check
