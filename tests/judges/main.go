// What the tools that people wait with say of an object: kstatus (Flux, Helm 4, kpt) in its own words, and Argo CD
// with the interpreter and the few libraries that it gives to a health script of argocd-cm.
//
// Reads one JSON document a line, {"object": …, "health": "Lua"}, and answers each with one line:
// {"kstatus": …, "argo": …, "message": …}. An error ends it with exit code 1.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"

	lua "github.com/yuin/gopher-lua"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/cli-utils/pkg/kstatus/status"
)

type question struct {
	Object json.RawMessage `json:"object"`
	Health string          `json:"health"`
}

type answer struct {
	Kstatus string `json:"kstatus"`
	Argo    string `json:"argo"`
	Message string `json:"message"`
}

func main() {
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(nil, 16<<20)
	out := json.NewEncoder(os.Stdout)
	for lines.Scan() {
		said, err := judge(lines.Bytes())
		if err == nil {
			err = out.Encode(said)
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
	if err := lines.Err(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func judge(line []byte) (*answer, error) {
	var asked question
	if err := json.Unmarshal(line, &asked); err != nil {
		return nil, err
	}
	object := &unstructured.Unstructured{}
	if err := object.UnmarshalJSON(asked.Object); err != nil {
		return nil, err
	}
	computed, err := status.Compute(object)
	if err != nil {
		return nil, fmt.Errorf("kstatus: %w", err)
	}
	health, message, err := argo(object.Object, asked.Health)
	if err != nil {
		return nil, fmt.Errorf("health.lua: %w", err)
	}
	return &answer{Kstatus: computed.Status.String(), Argo: health, Message: message}, nil
}

// Argo CD opens these libraries alone for scripts that are not its own: there is no string, no math, no print to rely
// on beyond the base library.
func argo(object map[string]any, script string) (string, string, error) {
	state := lua.NewState(lua.Options{SkipOpenLibs: true})
	defer state.Close()
	for name, open := range map[string]lua.LGFunction{lua.BaseLibName: lua.OpenBase, lua.TabLibName: lua.OpenTable} {
		state.Push(state.NewFunction(open))
		state.Push(lua.LString(name))
		state.Call(1, 0)
	}
	state.SetGlobal("obj", value(state, object))
	if err := state.DoString(script); err != nil {
		return "", "", err
	}
	table, ok := state.Get(-1).(*lua.LTable)
	if !ok {
		return "", "", fmt.Errorf("returned %s instead of a table", state.Get(-1).Type())
	}
	return table.RawGetString("status").String(), table.RawGetString("message").String(), nil
}

func value(state *lua.LState, of any) lua.LValue {
	switch typed := of.(type) {
	case bool:
		return lua.LBool(typed)
	case string:
		return lua.LString(typed)
	case int64:
		return lua.LNumber(typed)
	case float64:
		return lua.LNumber(typed)
	case []any:
		table := state.NewTable()
		for _, item := range typed {
			table.Append(value(state, item))
		}
		return table
	case map[string]any:
		table := state.NewTable()
		for key, item := range typed {
			table.RawSetString(key, value(state, item))
		}
		return table
	default:
		return lua.LNil
	}
}
