// What the tools that people wait with say of an object: kstatus (Flux, Helm 4, kpt) in its own words, and Argo CD
// with the interpreter and the few libraries that it gives to a health script of argocd-cm.
//
// Reads one JSON document a line, {"object": …, "health": "Lua", "discovery": "Lua", "actions": {name: "Lua"}}, and answers
// each with one line: {"kstatus": …, "argo": …, "message": …, "enabled": {name: bool}, "edited": {name: object}}. Without
// discovery, the last two are left out. An error ends it with exit code 1.
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
	Object    json.RawMessage   `json:"object"`
	Health    string            `json:"health"`
	Discovery string            `json:"discovery"`
	Actions   map[string]string `json:"actions"`
}

type answer struct {
	Kstatus string          `json:"kstatus"`
	Argo    string          `json:"argo"`
	Message string          `json:"message"`
	Enabled map[string]bool `json:"enabled,omitempty"`
	Edited  map[string]any  `json:"edited,omitempty"`
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
	said := &answer{Kstatus: computed.Status.String()}
	health, err := run(object.Object, asked.Health)
	if err != nil {
		return nil, fmt.Errorf("health.lua: %w", err)
	}
	said.Argo, said.Message = health.RawGetString("status").String(), health.RawGetString("message").String()
	if asked.Discovery == "" {
		return said, nil
	}
	found, err := run(object.Object, asked.Discovery)
	if err != nil {
		return nil, fmt.Errorf("discovery.lua: %w", err)
	}
	said.Enabled, said.Edited = map[string]bool{}, map[string]any{}
	found.ForEach(func(name, action lua.LValue) {
		disabled := action.(*lua.LTable).RawGetString("disabled")
		said.Enabled[name.String()] = !lua.LVAsBool(disabled)
	})
	for name, script := range asked.Actions {
		edited, err := run(object.Object, script)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		said.Edited[name] = plain(edited, object.Object)
	}
	return said, nil
}

// Argo CD opens these libraries alone for scripts that are not its own: there is no string, no math, no print to rely
// on beyond the base library.
func run(object map[string]any, script string) (*lua.LTable, error) {
	state := lua.NewState(lua.Options{SkipOpenLibs: true})
	defer state.Close()
	for name, open := range map[string]lua.LGFunction{lua.BaseLibName: lua.OpenBase, lua.TabLibName: lua.OpenTable} {
		state.Push(state.NewFunction(open))
		state.Push(lua.LString(name))
		state.Call(1, 0)
	}
	state.SetGlobal("obj", value(state, object))
	if err := state.DoString(script); err != nil {
		return nil, err
	}
	table, ok := state.Get(-1).(*lua.LTable)
	if !ok {
		return nil, fmt.Errorf("returned %s instead of a table", state.Get(-1).Type())
	}
	return table, nil
}

// The value of a script as JSON has it. Lua does not tell an empty list from an empty object, so these are what they
// were before, as Argo CD restores them.
func plain(of lua.LValue, before any) any {
	switch typed := of.(type) {
	case lua.LBool:
		return bool(typed)
	case lua.LString:
		return string(typed)
	case lua.LNumber:
		return float64(typed)
	case *lua.LTable:
		known, _ := before.(map[string]any)
		items, _ := before.([]any)
		if typed.MaxN() > 0 {
			list := []any{}
			for index := 1; index <= typed.MaxN(); index++ {
				var item any
				if index <= len(items) {
					item = items[index-1]
				}
				list = append(list, plain(typed.RawGetInt(index), item))
			}
			return list
		}
		if items != nil {
			return []any{}
		}
		object := map[string]any{}
		typed.ForEach(func(key, item lua.LValue) { object[key.String()] = plain(item, known[key.String()]) })
		return object
	default:
		return nil
	}
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
