package template

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"text/template/parse"
)

// expand expands a template as text/template does, for the part of its language that gateway
// templates use. That package calls methods by name, which makes the linker keep all methods of all
// types: 4.7 MB, most of it resident in each gateway.
func expand(path, text string, data any) (string, error) {
	tree := parse.New(path)
	tree.Mode = parse.SkipFuncCheck
	if _, err := tree.Parse(text, "", "", map[string]*parse.Tree{}); err != nil {
		return "", err
	}
	top := reflect.ValueOf(data)
	x := &expander{variables: []variable{{"$", top}}}
	if err := x.walk(tree.Root, top); err != nil {
		return "", fmt.Errorf("%s: %w", path, err)
	}
	return x.out.String(), nil
}

// An expander is the state of expanding one template.
type expander struct {
	out       strings.Builder
	variables []variable // of all enclosing blocks, the innermost last
}

type variable struct {
	name  string
	value reflect.Value
}

func (x *expander) walk(n parse.Node, dot reflect.Value) error {
	switch n := n.(type) {
	case *parse.ListNode:
		for _, one := range n.Nodes {
			if err := x.walk(one, dot); err != nil {
				return err
			}
		}
	case *parse.TextNode:
		x.out.Write(n.Text)
	case *parse.CommentNode:
	case *parse.ActionNode:
		v, err := x.pipe(n.Pipe, dot)
		if err == nil && len(n.Pipe.Decl) == 0 {
			fmt.Fprint(&x.out, v.Interface())
		}
		return err
	case *parse.IfNode:
		return x.branch(&n.BranchNode, dot, func(reflect.Value) error { return x.walk(n.List, dot) })
	case *parse.WithNode:
		return x.branch(&n.BranchNode, dot, func(v reflect.Value) error { return x.walk(n.List, v) })
	case *parse.RangeNode:
		if n.Pipe.IsAssign { // assignment to variables of any block
			return fmt.Errorf("%s: culvert does not know this; declare variables by :=", n.Pipe)
		}
		return x.branch(&n.BranchNode, dot, func(v reflect.Value) error { return x.each(n, v) })
	default:
		return fmt.Errorf("%s: culvert does not know this", n)
	}
	return nil
}

// branch calls then with the value of the pipe if that is true, and otherwise expands the else
// part.
func (x *expander) branch(n *parse.BranchNode, dot reflect.Value, then func(reflect.Value) error) error {
	outside := len(x.variables)
	defer func() { x.variables = x.variables[:outside] }()
	v, err := x.pipe(n.Pipe, dot)
	switch {
	case err != nil:
		return err
	case isTrue(v):
		return then(v)
	case n.ElseList != nil:
		return x.walk(n.ElseList, dot)
	}
	return nil
}

// each expands a range over the elements of a list.
func (x *expander) each(n *parse.RangeNode, v reflect.Value) error {
	if v.Kind() != reflect.Slice {
		return fmt.Errorf("%s: a %v has no elements", n.Pipe, v.Kind())
	}
	declared := len(x.variables)
	for i := range v.Len() {
		switch own := x.variables[declared-len(n.Pipe.Decl) : declared]; len(own) {
		case 1:
			own[0].value = v.Index(i)
		case 2:
			own[0].value, own[1].value = reflect.ValueOf(i), v.Index(i)
		}
		if err := x.walk(n.List, v.Index(i)); err != nil {
			return err
		}
		x.variables = x.variables[:declared]
	}
	return nil
}

func isTrue(v reflect.Value) bool {
	switch v.Kind() {
	case reflect.Slice:
		return v.Len() > 0
	case reflect.Struct:
		return true
	}
	return !v.IsZero()
}

// pipe returns the value of a pipeline, and declares its variables.
func (x *expander) pipe(p *parse.PipeNode, dot reflect.Value) (v reflect.Value, err error) {
	for _, c := range p.Cmds {
		if v, err = x.command(c, dot, v); err != nil {
			return v, err
		}
	}
	for _, d := range p.Decl {
		if !p.IsAssign {
			x.variables = append(x.variables, variable{d.Ident[0], v})
		} else if is := x.variable(d.Ident[0]); is != nil {
			is.value = v
		}
	}
	return v, nil
}

func (x *expander) variable(name string) *variable {
	for i := range slices.Backward(x.variables) {
		if x.variables[i].name == name {
			return &x.variables[i]
		}
	}
	return nil
}

// command returns the value of a command; before is the previous command's value, or invalid.
func (x *expander) command(c *parse.CommandNode, dot, before reflect.Value) (reflect.Value, error) {
	name, isFunction := c.Args[0].(*parse.IdentifierNode)
	if !isFunction && (len(c.Args) > 1 || before.IsValid()) {
		return before, fmt.Errorf("%s: takes no arguments", c)
	}
	if !isFunction {
		return x.operand(c.Args[0], dot)
	}
	var args []reflect.Value
	for _, a := range c.Args[1:] {
		v, err := x.operand(a, dot)
		if err != nil {
			return v, err
		}
		if args = append(args, v); name.Ident == "and" && !isTrue(v) || name.Ident == "or" && isTrue(v) {
			return v, nil // the rest is ignored
		}
	}
	if before.IsValid() {
		args = append(args, before)
	}
	v, err := call(name.Ident, args)
	if err != nil {
		err = fmt.Errorf("%s: %w", c, err)
	}
	return v, err
}

func (x *expander) operand(n parse.Node, dot reflect.Value) (reflect.Value, error) {
	switch n := n.(type) {
	case *parse.DotNode:
		return dot, nil
	case *parse.FieldNode:
		return fields(dot, n.Ident)
	case *parse.VariableNode:
		v := x.variable(n.Ident[0])
		if v == nil {
			return dot, fmt.Errorf("%s: no such variable", n)
		}
		return fields(v.value, n.Ident[1:])
	case *parse.ChainNode:
		v, err := x.operand(n.Node, dot)
		if err != nil {
			return v, err
		}
		return fields(v, n.Field)
	case *parse.PipeNode:
		return x.pipe(n, dot)
	case *parse.StringNode:
		return reflect.ValueOf(n.Text), nil
	case *parse.BoolNode:
		return reflect.ValueOf(n.True), nil
	case *parse.NumberNode:
		if n.IsInt {
			return reflect.ValueOf(int(n.Int64)), nil
		}
	case *parse.IdentifierNode:
		return call(n.Ident, nil)
	}
	return dot, fmt.Errorf("%s: culvert does not know this", n)
}

func fields(v reflect.Value, names []string) (reflect.Value, error) {
	for _, name := range names {
		if v.Kind() != reflect.Struct || !v.FieldByName(name).IsValid() {
			return v, fmt.Errorf("can't evaluate field %s in type %v", name, v.Type())
		}
		v = v.FieldByName(name)
	}
	return v, nil
}

var errArguments = errors.New("other arguments are needed")

// call calls a function.
func call(name string, args []reflect.Value) (v reflect.Value, err error) {
	if len(args) == 0 {
		return v, fmt.Errorf("%s: %w", name, errArguments)
	}
	first, rest := args[0], args[1:]
	switch name {
	case "and", "or":
		return args[len(args)-1], nil
	case "not":
		return reflect.ValueOf(!isTrue(first)), nil
	case "len":
		if k := first.Kind(); k != reflect.Slice && k != reflect.String {
			return v, errArguments
		}
		return reflect.ValueOf(first.Len()), nil
	case "index":
		for _, i := range rest {
			if first.Kind() != reflect.Slice || !i.CanInt() {
				return v, errArguments
			}
			if i.Int() < 0 || i.Int() >= int64(first.Len()) {
				return v, fmt.Errorf("%d is out of range of %d", i.Int(), first.Len())
			}
			first = first.Index(int(i.Int()))
		}
		return first, nil
	case "eq", "ne":
		equal := false
		for _, other := range rest {
			a, b := basic(first), basic(other)
			if a == nil || reflect.TypeOf(a) != reflect.TypeOf(b) {
				return v, errArguments
			}
			equal = equal || a == b
		}
		return reflect.ValueOf(equal == (name == "eq")), nil
	case "print", "printf":
		values := make([]any, len(args))
		for i, a := range args {
			values[i] = a.Interface()
		}
		if name == "print" {
			return reflect.ValueOf(fmt.Sprint(values...)), nil
		}
		if first.Kind() != reflect.String {
			return v, errArguments
		}
		return reflect.ValueOf(fmt.Sprintf(first.String(), values[1:]...)), nil
	}
	return v, fmt.Errorf("culvert does not know the function %s", name)
}

// basic returns the comparable part of a value, nil if there is none.
func basic(v reflect.Value) any {
	switch {
	case v.CanInt():
		return v.Int()
	case v.Kind() == reflect.String:
		return v.String()
	case v.Kind() == reflect.Bool:
		return v.Bool()
	}
	return nil
}
